"""An environment that is there already: an image's, with torch and the build tools in it. Checked, never changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def given_environment(python: Path, *, wanted_python: str, torch: str, needs: Sequence[str]) -> PythonEnvironment:
    """The environment of an interpreter, for a build against ``torch`` with the distributions in ``needs``.

    Raises :class:`ToolMissingError` naming what it lacks, and :class:`UnsupportedTargetError` for another torch or
    Python than the plan's.
    """
    executable = python.absolute()
    found = json.loads(run([executable, "-c", _PROBE]).output.strip().splitlines()[-1])
    packages = {str(canonicalize_name(name)): version for name, version in found["packages"].items()}
    missing = [name for name in ("torch", *needs) if name not in packages]
    if missing or not found["torch"]:
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
    if ".".join(found["python"].split(".")[:2]) != wanted_python:
        raise UnsupportedTargetError(
            f"the environment has Python {found['python']}, and the build is for {wanted_python}",
            where=str(python),
            hint=f"--python {'.'.join(found['python'].split('.')[:2])}",
        )
    return PythonEnvironment(
        root=executable.parent.parent,
        python=executable,
        bin=executable.parent,
        site_packages=Path(found["torch"]),
        version=found["python"],
        key="given",
        packages=packages,
    )
