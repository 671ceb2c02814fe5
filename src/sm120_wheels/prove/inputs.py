"""What can be proved: a wheel, a folder, an installed package, a library, an object file, a cubin, a fat binary.

Each becomes a :class:`Subject`: a list of members that may hold GPU code, told from their names and first bytes, and
a way to map one member into memory. Only such members are ever unpacked, one at a time for each worker, below a
temporary folder that is removed afterwards. What the code is, is not looked at here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import mmap
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from sm120_wheels.elf import MAGIC as ELF_MAGIC
from sm120_wheels.errors import Interrupted, WheelInvalidError
from sm120_wheels.prove.fatbin import MAGIC as FATBIN_MAGIC
from sm120_wheels.wheel.archive import WheelFile, open_wheel
from sm120_wheels.wheel.promises import excluded_of

_T = TypeVar("_T")

Kind = Literal["host", "cubin", "fatbin", "ptx"]

_HEAD_BYTES = 64
_NAMES = re.compile(r"\.(so(\.[\d.]+)?|o|cubin|fatbin|ptx|pyd|bin)$")
_EM_CUDA = b"\xbe\x00"


@dataclass(frozen=True, kw_only=True)
class Member:
    name: str
    """Path inside the wheel or folder, with forward slashes; a file's own name."""
    kind: Kind
    bytes: int
    packed_bytes: int
    """Its size inside the archive; the same as ``bytes`` outside of one."""
    data: bool = False
    """A loose PTX file with no library beside it that no Python file names: shipped, but nobody is known to load it."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    path: Path
    """The wheel, folder or file."""
    name: str
    version: str
    """With its local label; empty where there is none."""
    is_wheel: bool
    members: tuple[Member, ...]
    tag_problem: str = ""
    """How a wheel's tags inside are not those of its filename; empty where they agree."""
    excluded: tuple[str, ...] = ()
    """File name patterns of libraries that a wheel's may take from elsewhere."""


def place(subject: Subject, member: Member) -> str:
    """Where a member is, for errors: its wheel is named too, since what it is unpacked to is gone by then."""
    if subject.is_wheel:
        return f"{subject.path}: {member.name}"
    return str(subject.path / member.name if subject.path.is_dir() else subject.path)


def subject(text: str) -> Subject:
    """Find out what the user named. Raises :class:`WheelInvalidError` where it is nothing that can be read."""
    try:
        return _subject(text, Path(text))
    except OSError as exc:
        raise WheelInvalidError(
            f"{exc.filename or text} cannot be read",
            where=text,
            why=exc.strerror or str(exc),
            hint="check its owner and mode",
        ) from exc


def _subject(text: str, path: Path) -> Subject:
    if path.suffix == ".whl":
        with open_wheel(path, same_tags=False) as wheel:
            return Subject(
                path=path,
                name=wheel.filename.distribution,
                version=str(wheel.filename.version),
                is_wheel=True,
                members=_told_apart(_wheel_members(wheel), _python_of_wheel(wheel)),
                tag_problem=wheel.tag_problem(),
                excluded=excluded_of(wheel),
            )
    if text and path.is_dir():  # an empty name would be the folder that one happens to be in
        files = _files_below(path)
        members = [m for p in files if (m := _file_member(p, p.relative_to(path).as_posix()))]
        sources = (p.read_bytes() for p in files if p.suffix == ".py")
        return Subject(path=path, name=path.name, version="", is_wheel=False, members=_told_apart(members, sources))
    if path.is_file():
        member = _file_member(path, path.name)
        if member is None:
            raise WheelInvalidError(
                f"{path.name} is nothing that can hold GPU code",
                where=str(path),
                why="it starts like no ELF file, cubin, fat binary or PTX text",
                hint="give a wheel (.whl), a library (.so), an object (.o), a .cubin, a .fatbin, a .ptx or a folder",
            )
        return Subject(path=path, name=path.name, version="", is_wheel=False, members=(member,))
    return _installed(text)


def _files_below(folder: Path) -> list[Path]:
    """Every file of a folder. Links to files count; links to folders are not followed. Raises :class:`OSError`."""

    def refuse(error: OSError) -> None:
        raise error  # os.walk would leave out what it may not read, and then there would seem to be nothing in it

    found = (Path(root, name) for root, _, names in os.walk(folder, onerror=refuse) for name in names)
    return sorted(path for path in found if path.is_file())


def _installed(text: str) -> Subject:
    if os.path.lexists(text) or "/" in text or not text:
        raise WheelInvalidError(
            f"{text} is not a file" if os.path.lexists(text) else f"there is no file {text!r}",
            hint="give the path of a wheel, library or folder",
        )
    try:
        found = importlib.metadata.distribution(text)
    except (importlib.metadata.PackageNotFoundError, ValueError) as exc:
        raise WheelInvalidError(
            f"{text} is neither a file nor an installed package",
            hint="give the path of a wheel, library or folder, or the name of a package installed beside this program",
        ) from exc
    root = Path(str(found.locate_file(""))).resolve()
    paths = [Path(str(file.locate())).resolve() for file in found.files or ()]
    lost = [path for path in paths if _NAMES.search(path.name) and not path.is_file()]
    if lost or not paths:
        raise WheelInvalidError(
            f"the installed {found.name} is not whole",
            where=str(lost[0] if lost else root),
            why=f"{len(lost)} libraries are on its list and not there"
            if lost
            else "it has no list of its files (RECORD)",
            hint="install it again, or give the folder that it lies in",
        )
    files = [path for path in paths if path.is_file() and path.is_relative_to(root)]
    members = [m for path in files if (m := _file_member(path, path.relative_to(root).as_posix()))]
    sources = (path.read_bytes() for path in files if path.suffix == ".py")
    return Subject(
        path=root, name=found.name, version=found.version, is_wheel=False, members=_told_apart(members, sources)
    )


def _told_apart(members: Iterable[Member], python: Iterable[bytes]) -> tuple[Member, ...]:
    """The members, loose PTX that is only data marked. ``python`` are the package's own sources, read if need be."""
    listed = list(members)
    folders = {m.name.rpartition("/")[0] for m in listed if m.kind != "ptx"}
    loose = {m.name for m in listed if m.kind == "ptx" and m.name.rpartition("/")[0] not in folders}
    for text in python if loose else ():
        loose = {name for name in loose if name.rpartition("/")[2].encode() not in text}
    return tuple(replace(m, data=m.name in loose) for m in listed)


def _python_of_wheel(wheel: WheelFile) -> Iterator[bytes]:
    return (wheel.read(name) for name in wheel.members if name.endswith(".py"))


def _wheel_members(wheel: WheelFile) -> Iterator[Member]:
    for name in wheel.members:
        if _may_hold_code(name, executable=wheel.executable(name)) and wheel.size(name) >= _HEAD_BYTES:
            with wheel.open(name) as stream:
                kind = _kind(name, stream.read(_HEAD_BYTES))
            if kind:
                yield Member(name=name, kind=kind, bytes=wheel.size(name), packed_bytes=wheel.packed_size(name))


def _file_member(path: Path, name: str) -> Member | None:
    with path.open("rb") as stream:
        kind = _kind(name, stream.read(_HEAD_BYTES))
    size = path.stat().st_size
    return Member(name=name, kind=kind, bytes=size, packed_bytes=size) if kind else None


def _may_hold_code(name: str, *, executable: bool) -> bool:
    base = name.rpartition("/")[2]
    return executable or "." not in base or bool(_NAMES.search(base))


def _kind(name: str, head: bytes) -> Kind | None:
    if head[:4] == ELF_MAGIC:
        return "cubin" if head[18:20] == _EM_CUDA else "host"
    if int.from_bytes(head[:4], "little") == FATBIN_MAGIC:
        return "fatbin"
    return "ptx" if name.endswith(".ptx") else None


@contextlib.contextmanager
def mapped(subject: Subject, member: Member) -> Iterator[tuple[mmap.mmap, Path]]:
    """A member's bytes in memory, and a path where they lie as a file, for as long as the block runs.

    A wheel's member is checked against RECORD as it is unpacked.
    """
    with contextlib.ExitStack() as stack:
        if subject.is_wheel:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sm120-prove-")))
            with open_wheel(subject.path, same_tags=False) as wheel:
                path = wheel.extract(member.name, folder)
        else:
            path = subject.path / member.name if subject.path.is_dir() else subject.path
        stream = stack.enter_context(path.open("rb"))
        if path.stat().st_size == 0:
            raise WheelInvalidError(f"{member.name} is empty", where=str(path))
        buffer = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        stack.callback(_close, buffer)
        yield buffer, path


#: Below this many bytes, starting worker processes takes longer than the reading.
_WORTH_PROCESSES = 60 << 20


def read_members(
    jobs: Sequence[tuple[Subject, Member]], read: Callable[[Subject, Member], _T], *, workers: int = 0
) -> list[_T]:
    """Apply ``read`` to each member, the largest first, in parallel processes; answers in the order given.

    ``read`` must be picklable. ``workers`` 0 means one for each CPU that this process may use. This process is one of
    the workers, the one that starts at once: it reads the largest member, then whatever no other has begun.
    """
    workers = min(len(jobs), workers or len(os.sched_getaffinity(0)))
    if workers <= 1 or sum(m.bytes for _, m in jobs) < _WORTH_PROCESSES:
        return [read(subject, member) for subject, member in jobs]
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i][1].bytes)
    # spawn, not fork: the caller may have threads (a progress display, a test runner)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers - 1, mp_context=context, initializer=_leave_quietly) as pool:
        try:
            running = {i: pool.submit(read, *jobs[i]) for i in order[1:]}
            done = {order[0]: read(*jobs[order[0]])}
            done |= {i: read(*jobs[i]) for i in order[1:] if running[i].cancel()}
            return [done[i] if i in done else running[i].result() for i in range(len(jobs))]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _leave_quietly() -> None:
    """Ctrl-C reaches all processes of a terminal. The first of them says so; the others only clean up and end."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(Interrupted.exit_code))


def _close(buffer: mmap.mmap) -> None:
    """Unmap, unless something still looks into it; then the map goes with its last user."""
    with contextlib.suppress(BufferError):
        buffer.close()
