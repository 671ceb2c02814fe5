"""Running uv: installing exactly the files of a lock, and saying in our own words what went wrong.

Only hash-checked wheels are ever installed: ``--require-hashes --no-deps --no-build``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from uv import find_uv_bin

from sm120_wheels import process
from sm120_wheels.console import note
from sm120_wheels.errors import (
    CommandError,
    DownloadError,
    HashMismatchError,
    HostUnreachableError,
    OfflineError,
    Sm120Error,
    ToolMissingError,
    UnsupportedTargetError,
)
from sm120_wheels.files import no_space
from sm120_wheels.toolchain.indexes import IndexSettings, index_settings
from sm120_wheels.toolchain.locks import LockEntry, LockRequest

#: Settings of the caller's shell that would bend a locked install: another Python, other versions, another index.
_DROPPED = (
    "CONDA_PREFIX",
    "PYTHONHOME",
    "PYTHONPATH",
    "UV_BUILD_CONSTRAINT",
    "UV_CONSTRAINT",
    "UV_EXCLUDE",
    "UV_EXCLUDE_NEWER",
    "UV_NO_BINARY",
    "UV_OVERRIDE",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_TORCH_BACKEND",
    "VIRTUAL_ENV",
)

_CONNECT = re.compile(
    r"error sending request|dns error|client error \(Connect\)|tcp connect error|operation timed out"
    r"|connection (refused|reset)|Could not connect|invalid peer certificate",
    re.IGNORECASE,
)
_ABSENT = re.compile(r"was not found in the package registry|there is no version of|not found in the provided", re.I)
_NO_WHEEL = re.compile(
    r"no wheels? with a matching|has no (usable )?wheels|no compatible wheel|building source distributions"
    r"|Building source distributions|is not compatible with the current",
    re.I,
)
_STATUS = re.compile(r"HTTP status (client|server) error \(([^)]*)\)")


def uv_binary() -> Path:
    """The uv that came with our dependency. Raises :class:`ToolMissingError`."""
    try:
        return Path(find_uv_bin())
    except FileNotFoundError as exc:
        raise ToolMissingError(
            "the program uv is missing", why=str(exc), hint="reinstall it: python -m pip install --force-reinstall uv"
        ) from exc


def uv_environment(environ: Mapping[str, str], *, cache_root: Path) -> dict[str, str]:
    """The environment uv runs in: the caller's, less what would bend a locked install.

    Downloads go to ``UV_CACHE_DIR`` where the user set it, else below our cache, so that copying our cache to a
    machine without network copies all that a build needs.
    """
    kept = {key: value for key, value in environ.items() if key not in _DROPPED}
    kept.setdefault("UV_CACHE_DIR", str(cache_root / "uv"))
    kept.update(UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1", NO_COLOR="1")
    return kept


def install(
    entries: Sequence[LockEntry],
    *,
    python: Path,
    target: Path | None,
    workdir: Path,
    locks: Sequence[LockRequest],
    cache_root: Path,
    offline: bool,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Install locked entries into ``python``'s environment, or into the folder ``target``.

    ``workdir`` (an existing folder) takes the requirements file; uv runs there, so no project file of the caller's
    folder is read. ``locks`` name the files in errors. Raises one Sm120Error for each kind of failure.
    """
    requirements = workdir / "requirements.txt"
    requirements.write_text("".join(entry.line() + "\n" for entry in entries), encoding="utf-8")
    argv: list[str | Path] = [uv_binary(), "pip", "install", "--require-hashes", "--no-deps", "--no-build"]
    argv += ["--python", python, "--requirements", requirements]
    argv += ["--target", target] if target else []
    argv += ["--offline"] if offline else []
    settings = index_settings(os.environ)
    base = uv_environment(os.environ, cache_root=cache_root)
    finished = process.run(argv, cwd=workdir, env={**base, **settings.first}, on_line=on_line, check=False)
    if not finished.ok and settings.fallback and (offline or _ABSENT.search(unwrapped(finished.output))):
        env = {**base, **settings.first, **settings.fallback}
        finished = process.run(argv, cwd=workdir, env=env, on_line=on_line, check=False)
    if not finished.ok:
        raise explain(
            finished.output,
            entries=entries,
            locks=locks,
            settings=settings,
            cache_root=cache_root,
            offline=offline,
        )


def note_downloads(line: str) -> None:
    """For ``on_line``: of what uv says, the lines that tell why one waits."""
    if line.lstrip().startswith(("Downloading", "Prepared", "Building")):
        note(line.strip())


def unwrapped(output: str) -> str:
    """uv's output with each message on one line, without its progress lines."""
    lines: list[str] = []
    for line in output.splitlines():
        if re.match(r"\s+\S", line) and lines and not re.match(r"\s+(cause|hint|error):", line):
            lines[-1] += " " + line.strip()
        elif line.strip():
            lines.append(line.strip())
    noise = ("Using ", "Resolved ", "Downloading ", "Downloaded ", "Prepared ", "Installed ", "Audited ", "Checked ")
    return "\n".join(line for line in lines if not line.startswith(noise))


def explain(
    output: str,
    *,
    entries: Sequence[LockEntry],
    locks: Sequence[LockRequest],
    settings: IndexSettings,
    cache_root: Path,
    offline: bool,
) -> Sm120Error:
    """The error for uv's output. A pure function of it, so each kind can be tested by its text."""
    text = unwrapped(output)
    where = ", ".join(str(request.path) for request in locks)
    offline_hint = "run once with network (or copy the cache of a machine that did), then --offline works"
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return no_space(cache_root)
    if mismatch := re.search(r"Hash mismatch for `([^`]+)`.*?Expected:\s*(.*?)\s*Computed:\s*(\S+)", text, re.S):
        name, expected, computed = mismatch.groups()
        return HashMismatchError(
            f"{name} as downloaded is not the file that the lock names",
            where=where,
            why=f"sha256 in the lock: {' or '.join(d.removeprefix('sha256:') for d in expected.split())}\n"
            f"sha256 downloaded:  {computed.removeprefix('sha256:')}",
            hint="do not use that file. If the index is a mirror, compare with another; if you changed the lock, run"
            " `sm120 lock`",
        )
    if offline and ("network" in text.lower() or _ABSENT.search(text)):
        missing = sorted({entry.name for entry in entries if entry.name in text})
        return OfflineError(
            f"{', '.join(missing) or 'a locked package'} is not in the cache, and --offline forbids to download it",
            where=where,
            why=f"looked in {cache_root}",
            hint=offline_hint,
        )
    if _CONNECT.search(text):
        causes = [line.removeprefix("cause: ") for line in text.splitlines() if line.startswith("cause: ")]
        return HostUnreachableError(
            "the Python package index cannot be reached",
            where=_first_url(text) or where,
            why=causes[-1] if causes else text,
            hint="set another index or mirror with UV_DEFAULT_INDEX or pip's index-url (here: "
            f"{settings.source}); a proxy with HTTPS_PROXY; a company's certificates with SSL_CERT_FILE.\n"
            f"Without network: {offline_hint}",
        )
    if status := _STATUS.search(text):
        return DownloadError(
            f"the package index answered {status.group(2)}",
            where=_first_url(text) or where,
            hint="try again; if it stays, set another index with UV_DEFAULT_INDEX or pip's index-url",
        )
    if _NO_WHEEL.search(text):
        return UnsupportedTargetError(
            "a locked package has no wheel for this Python and machine",
            where=where,
            why=_essential(text),
            hint="choose a Python that the lock's packages support (--python)",
        )
    if _ABSENT.search(text):
        return DownloadError(
            "the package index does not have a locked package",
            where=where,
            why=_essential(text),
            hint=f"the index in use comes from {settings.source}; set one that mirrors all of PyPI with"
            " UV_DEFAULT_INDEX or pip's index-url",
        )
    return CommandError("uv could not install a lock", where=where, why=_essential(text))


def _first_url(text: str) -> str:
    match = re.search(r"https?://[^\s`)]+", text)
    return match.group(0) if match else ""


def _essential(text: str) -> str:
    """At most four lines: the error and its causes."""
    lines = [line for line in text.splitlines() if line.startswith(("error:", "cause:"))] or text.splitlines()
    return "\n".join(line[:400] for line in lines[:4])
