"""Write lock files again from the ``.in`` files beside them, with the hashes of every platform.

Pins that are already in a lock stay, unless an upgrade is asked for or the ``.in`` file forbids them.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from sm120_wheels import files, process
from sm120_wheels.errors import NotWritableError, UnknownRecipeError, near_misses
from sm120_wheels.toolchain import uv
from sm120_wheels.toolchain.indexes import index_settings
from sm120_wheels.toolchain.locks import LockRequest, known_locks, lock_path, read_lock

#: Locks hold for this Python and later, unless their .in file says ``# python >= 3.11``.
_LEAST_PYTHON = "3.10"


def least_python(source: str) -> str:
    """The oldest Python that a lock is for, from the ``# python >= X.Y`` line of its ``.in`` file."""
    match = re.search(r"^#\s*python\s*>=\s*(3\.\d+)\s*$", source, re.M)
    return match.group(1) if match else _LEAST_PYTHON


def lock_source(name: str) -> Path:
    """The ``.in`` file of a lock. Raises :class:`UnknownRecipeError` with near misses."""
    path = lock_path(name).with_suffix(".in")
    if not path.is_file():
        known = sorted(p.stem for p in path.parent.glob("*.in"))
        raise UnknownRecipeError(f"no lock called {name!r}", hint=near_misses(name, known))
    return path


def resolve_lock(source: Path, current: str, *, cache_root: Path, upgrade: bool) -> str:
    """The text of the lock for a ``.in`` file, ``current`` being the lock's text so far (or empty).

    Resolved for every platform and Python at once; the index's address is not in it. Raises what an installation
    raises, and :class:`CommandError` where no versions fit together.
    """
    with tempfile.TemporaryDirectory(prefix="sm120-lock.") as folder:
        lock = Path(folder) / f"{source.stem}.txt"
        if current:
            lock.write_text(current, encoding="utf-8")
        argv: list[str | Path] = [uv.uv_binary(), "pip", "compile", "--universal", "--generate-hashes", "--quiet"]
        argv += ["--no-header", "--no-annotate", "--python-version", least_python(source.read_text(encoding="utf-8"))]
        argv += ["--upgrade"] if upgrade else []
        argv += ["--output-file", lock, source]
        settings = index_settings(os.environ)
        environment = {**uv.uv_environment(os.environ, cache_root=cache_root), **settings.first}
        finished = process.run(argv, cwd=Path(folder), env=environment, check=False)
        if not finished.ok:
            requests = [LockRequest(path=source)]
            raise uv.explain(
                finished.output,
                entries=(),
                locks=requests,
                settings=settings,
                cache_root=cache_root,
                offline=False,
            )
        read_lock(lock)
        return lock.read_text(encoding="utf-8")


def write_lock(name: str, *, cache_root: Path, upgrade: bool) -> bool:
    """Bring one lock up to date with its ``.in`` file; True if that changed it."""
    source, target = lock_source(name), lock_path(name)
    current = target.read_text(encoding="utf-8") if target.is_file() else ""
    text = resolve_lock(source, current, cache_root=cache_root, upgrade=upgrade)
    if text == current:
        return False
    try:
        files.write_text(target, text)
    except NotWritableError as exc:
        raise NotWritableError(
            f"the lock {name} cannot be written",
            where=str(target),
            why=exc.why,
            hint="run `sm120 lock` in a checkout of the project",
        ) from exc
    return True


def lock_names() -> list[str]:
    """Every lock that has a ``.in`` file or a ``.txt`` file, sorted."""
    return sorted({*known_locks(), *(path.stem for path in lock_path("x").parent.glob("*.in"))})
