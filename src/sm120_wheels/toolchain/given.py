"""An environment that is there already: an image's, with torch and the build tools in it. Checked, never changed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from sm120_wheels.errors import ToolMissingError, UnsupportedTargetError
from sm120_wheels.process import run
from sm120_wheels.toolchain.pyenv import PythonEnvironment

#: Runs in that environment; standard library only. torch is found, not imported: it may lack a driver.
_PROBE = """
import importlib.metadata as m, importlib.util as u, json, os, platform
spec = u.find_spec("torch")
print(json.dumps({
    "python": platform.python_version(),
    "torch": os.path.dirname(os.path.dirname(spec.origin)) if spec and spec.origin else None,
    "packages": {d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"]},
}))
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is in an environment."""

    python: str
    """Full version."""
    torch: Path | None
    """The folder that holds the package torch; None where it is not importable."""
    packages: dict[str, str]
    """Canonical distribution name → version."""


def look_at(python: Path, *, isolated: bool = False) -> Found:
    """Look at the environment of an interpreter, without importing anything of it.

    ``isolated``: without what PYTHONPATH and the user's own site-packages would add.
    Raises :class:`ToolMissingError` where there is no such interpreter, :class:`CommandError` where it fails.
    """
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise ToolMissingError(f"there is no interpreter {python}", hint="--environment takes the path of a python")
    said = run([python.absolute(), *(["-I"] if isolated else []), "-c", _PROBE]).output
    try:
        found = json.loads(said.strip().splitlines()[-1])
    except (IndexError, ValueError) as exc:
        why = f"asked for its packages it says {said.strip()[:200]!r}"
        raise ToolMissingError(f"{python} is no Python interpreter", why=why) from exc
    return Found(
        python=str(found["python"]),
        torch=Path(found["torch"]) if found["torch"] else None,
        packages={str(canonicalize_name(name)): str(version) for name, version in found["packages"].items()},
    )


def given_environment(python: Path, *, wanted_python: str, torch: str, needs: Sequence[str]) -> PythonEnvironment:
    """The environment of an interpreter, for a build against ``torch`` with the distributions in ``needs``.

    Raises :class:`ToolMissingError` naming what it lacks, and :class:`UnsupportedTargetError` for another torch or
    Python than the plan's.
    """
    executable = python.absolute()
    found = look_at(executable)
    packages = found.packages
    missing = [name for name in ("torch", *needs) if name not in packages]
    if missing or found.torch is None:
        raise ToolMissingError(
            f"the environment lacks {', '.join(missing) or 'an importable torch'}",
            where=str(python),
            hint="install it there, or leave out --environment so that one is made",
        )
    if Version(packages["torch"]).base_version != Version(torch).base_version:
        raise UnsupportedTargetError(
            f"the environment has torch {packages['torch']}, and the build is for {torch}",
            where=str(python),
            hint=f"--torch {Version(packages['torch']).base_version}, if the recipe pairs it, or another environment",
        )
    if ".".join(found.python.split(".")[:2]) != wanted_python:
        raise UnsupportedTargetError(
            f"the environment has Python {found.python}, and the build is for {wanted_python}",
            where=str(python),
            hint=f"--python {'.'.join(found.python.split('.')[:2])}",
        )
    return PythonEnvironment(
        root=executable.parent.parent,
        python=executable,
        bin=executable.parent,
        site_packages=found.torch,
        version=found.python,
        key="given",
        packages=packages,
    )
