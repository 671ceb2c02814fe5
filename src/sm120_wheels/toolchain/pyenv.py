"""Virtual environments made of locks: one for each content, shared by builds, complete or not there.

An environment is made at its final path, because it is not sure to work after a move; a marker written last says
that it is complete, and one without marker is made anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels import files, process
from sm120_wheels.toolchain import uv
from sm120_wheels.toolchain.interpreters import Interpreter, find_interpreter
from sm120_wheels.toolchain.locks import LockEntry, LockRequest, choose

_COMPLETE = "sm120-complete.json"


@dataclass(frozen=True, kw_only=True)
class PythonEnvironment:
    """A complete virtual environment. It is shared: never install into it."""

    root: Path
    python: Path
    bin: Path
    site_packages: Path
    version: str
    """The full version of its Python, ``3.12.1``."""
    key: str
    """Content key: Python and every locked file."""
    packages: dict[str, str]
    """Distribution name → version, as locked."""


def ensure_environment(
    python: Path | str,
    locks: Sequence[LockRequest],
    *,
    cache_root: Path,
    offline: bool,
    need_headers: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> PythonEnvironment:
    """The environment of ``python`` (a path, or a version such as ``3.12``) with the locks' packages in it.

    Made if it is not there; a second process that asks for the same waits for the first. Where two locks pin the
    same name, the earlier's pin counts. Raises ToolMissingError, HostUnreachableError, OfflineError,
    HashMismatchError, NoSpaceError, DownloadError, UnsupportedTargetError or RecipeInvalidError.
    """
    interpreter = find_interpreter(python, need_headers=need_headers)
    entries = choose(locks, python_version=interpreter.version)
    key = environment_key(interpreter, entries)
    root = cache_root / "environments" / key[:24]
    with files.locked(root.with_suffix(".lock"), what=f"the environment {root.name}"):
        if not _is_complete(root):
            if root.exists():
                shutil.rmtree(root)
            with files.no_space_is_an_error(root):
                _make(root, interpreter, entries, locks, cache_root=cache_root, offline=offline, on_line=on_line)
                files.write_json(root / _COMPLETE, {"key": key, "packages": _packages(entries)})
    return PythonEnvironment(
        root=root,
        python=root / "bin" / "python",
        bin=root / "bin",
        site_packages=root / "lib" / f"python{interpreter.minor}" / "site-packages",
        version=interpreter.version,
        key=key,
        packages=_packages(entries),
    )


def environment_key(interpreter: Interpreter, entries: Sequence[LockEntry]) -> str:
    """What the environment is made of, as a sha256: the Python (version, platform, path) and every locked file."""
    return files.content_key(
        {
            "python": [interpreter.version, interpreter.platform, str(interpreter.executable)],
            "entries": [entry.line() for entry in entries],
        }
    )


def _packages(entries: Sequence[LockEntry]) -> dict[str, str]:
    return {entry.name: entry.version for entry in entries}


def _is_complete(root: Path) -> bool:
    """Whether the marker is there and the base Python that it links to still is."""
    return (root / _COMPLETE).is_file() and (root / "bin" / "python").exists()


def _make(
    root: Path,
    interpreter: Interpreter,
    entries: Sequence[LockEntry],
    locks: Sequence[LockRequest],
    *,
    cache_root: Path,
    offline: bool,
    on_line: Callable[[str], None] | None,
) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    environment = uv.uv_environment(os.environ, cache_root=cache_root)
    # --relocatable: its scripts find their Python by their own place, so a path of any length works (the kernel cuts
    # a script's first line at 127 to 255 bytes), and so does a cache that was copied.
    argv: list[str | Path] = [
        uv.uv_binary(),
        "venv",
        "--no-project",
        "--relocatable",
        "--python",
        interpreter.executable,
        root,
    ]
    process.run(argv, cwd=root.parent, env=environment)
    uv.install(
        entries,
        python=root / "bin" / "python",
        target=None,
        workdir=root,
        locks=locks,
        cache_root=cache_root,
        offline=offline,
        on_line=on_line,
    )
