"""The one way bits reach the disk: aside under a temporary name, synced, then renamed; and locks between processes.

Nothing here knows what the files mean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from sm120_wheels.errors import BusyError, NoSpaceError, NotWritableError

_CHUNK = 1 << 20
#: File in a temporary's folder that its process holds locked.
_HELD = ".held"


def sha256_file(path: Path) -> str:
    """The sha256 of a file, as 64 lower-case hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def canonical_json(value: Any) -> str:
    """JSON whose bytes depend only on the value: sorted keys, no spaces. What content keys are made of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_key(value: Any) -> str:
    """The sha256 of :func:`canonical_json` of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@contextlib.contextmanager
def no_space_is_an_error(path: Path) -> Iterator[None]:
    """Turn a full disk in the block into a :class:`NoSpaceError` that names the filesystem, and a folder that may not
    be written into a :class:`NotWritableError`.

    (A with-block around writes; everything half-written is the caller's temporary name and is removed there.)
    """
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT) or _copying_ran_full(exc):
            raise no_space(path) from exc
        if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise NotWritableError(
                f"cannot write below {path.parent}",
                where=str(exc.filename or path),
                why=os.strerror(exc.errno),
                hint="check its owner and mode, or point SM120_CACHE_DIR, SM120_BUILD_DIR and SM120_DIST_DIR elsewhere",
            ) from exc
        raise


def _copying_ran_full(exc: OSError) -> bool:
    """shutil.copytree collects the errors of all files, as text, in one without a number."""
    full = (f"[Errno {errno.ENOSPC}]", f"[Errno {errno.EDQUOT}]")
    return isinstance(exc, shutil.Error) and any(mark in str(exc) for mark in full)


def no_space(path: Path) -> NoSpaceError:
    """The error for a full disk below ``path``, with the figures that ``df`` would show."""
    probe = path
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    usage = shutil.disk_usage(probe)
    return NoSpaceError(
        "no disk space left",
        where=str(path),
        why=f"{usage.free / 1e9:.2f} GB of {usage.total / 1e9:.1f} GB are free on that filesystem",
        hint="free some room, or point SM120_CACHE_DIR and SM120_BUILD_DIR to a larger disk; what was finished is kept",
    )


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """A temporary path beside ``target``, renamed over it if the block ends well and removed if not.

    The block may write a file there or make a folder there. A folder replaces nothing: if ``target`` is already a
    folder when the block ends (another process was first), the new one is dropped. What a killed process left under
    a temporary name is removed when the same target is written again.
    """
    with scratch_folder(target) as holder, no_space_is_an_error(target):
        temporary = holder / target.name
        yield temporary
        if temporary.is_file():
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            temporary.replace(target)
        elif temporary.is_dir():
            try:
                temporary.rename(target)
            except OSError as exc:
                if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise


@contextlib.contextmanager
def scratch_folder(name: Path) -> Iterator[Path]:
    """A folder of this process alone, beside ``name`` and called after it, removed with all in it at the end.

    What a killed process left of the same name is removed first. It holds nothing but a hidden file.
    """
    with no_space_is_an_error(name):
        name.parent.mkdir(parents=True, exist_ok=True)
        _sweep(name)
        holder, held = _new_holder(name)
    try:
        yield holder
    finally:
        shutil.rmtree(holder, ignore_errors=True)
        os.close(held)


def _new_holder(target: Path) -> tuple[Path, int]:
    """A folder for the temporary, and the open, locked file in it that says its process lives."""
    while True:
        holder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            held = os.open(holder / _HELD, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # swept between the two calls
        with contextlib.suppress(OSError):  # a filesystem without locks: nothing is ever swept there
            fcntl.flock(held, fcntl.LOCK_EX)
        if os.fstat(held).st_nlink:
            return holder, held
        os.close(held)  # swept before it was locked


def _sweep(target: Path) -> None:
    """Remove the holders of processes that died: the kernel has let go of their locks."""
    for holder in target.parent.glob(f".{glob.escape(target.name)}.*"):
        with contextlib.suppress(OSError):
            other = os.open(holder / _HELD, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(holder, ignore_errors=True)
            finally:
                os.close(other)


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user can enter. Raises :class:`NotWritableError` for one that another user owns."""
    with no_space_is_an_error(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.getuid():
        raise NotWritableError(
            f"{folder} belongs to another user",
            why="sockets and locks there would be theirs",
            hint="remove that folder, or name another one with SM120_RUNTIME_DIR",
        )


def write_text(target: Path, text: str) -> None:
    """Write a text file (UTF-8) atomically."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: Path, value: Any) -> None:
    """Write a JSON file atomically: sorted, indented, so that two runs give the same bytes."""
    write_text(target, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def locked(path: Path, *, what: str, timeout_s: float = -1) -> Iterator[None]:
    """Hold an exclusive lock file; released by the kernel when the process dies, however it dies.

    ``timeout_s`` < 0 waits for ever, 0 does not wait. Raises :class:`BusyError` naming ``what`` when time is up.
    """
    lock = filelock.FileLock(path, timeout=timeout_s)
    try:
        with no_space_is_an_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
    except filelock.Timeout as exc:
        raise BusyError(
            f"{what} is in use by another process",
            where=str(path),
            hint="wait for the other run to end, or stop it",
        ) from exc
    try:
        yield
    finally:
        lock.release()


def human_bytes(count: float) -> str:
    """Bytes for people: ``12.3 MB`` (decimal, as disks and downloads are counted)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Seconds for people: ``8.1 s``, ``2 min 05 s``, ``1 h 02 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
