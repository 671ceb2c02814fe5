"""Finds out what decides which wheel fits: the GPU, its driver, and the torch and Python of an environment.

Nothing of the environment is imported; what is not found is None, never a guess.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging import tags
from packaging.version import Version

from sm120_wheels.errors import SettingError, Sm120Error, ToolMissingError
from sm120_wheels.gpus import Gpu, find_gpus
from sm120_wheels.process import run

#: Printed by the environment's own interpreter; torch's CUDA version is read from its version.py, not imported.
_ASK_PYTHON = """
import importlib.metadata as m, importlib.util as u, json, pathlib, re, sys, sysconfig
torch = cuda = None
try:
    torch = m.version("torch")
    spec = u.find_spec("torch")
    text = pathlib.Path(spec.origin).with_name("version.py").read_text() if spec and spec.origin else ""
    found = re.search(r"^cuda\\b[^=]*=\\s*['\\"]([0-9.]+)['\\"]", text, re.M)
    cuda = found.group(1) if found else None
except m.PackageNotFoundError:
    pass
print(json.dumps({"python": list(sys.version_info[:3]), "threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
                  "cpython": sys.implementation.name == "cpython", "torch": torch, "cuda": cuda}))
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a wheel must fit. None means that it was not found."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    driver_cuda: str | None = None
    """The newest CUDA version the driver supports: ``13.0``."""
    python: str = ""
    tags: frozenset[tags.Tag] = field(default_factory=frozenset)
    torch: str | None = None
    torch_cuda: str | None = None

    @property
    def capability(self) -> tuple[int, int] | None:
        """Of CUDA device 0, which is what programs take unless told otherwise."""
        return self.gpus[0].capability if self.gpus else None


def detect(python: Path | None = None) -> Machine:
    """This machine, with the environment of ``python`` (default: the one that runs this).

    Raises :class:`SettingError` where that is not a Python.
    """
    gpus, _ = find_gpus()
    told = _python(python or Path(sys.executable))
    major, minor, micro = told["python"]
    return Machine(
        gpus=tuple(gpus),
        driver=next((gpu.driver for gpu in gpus if gpu.driver), None),
        driver_cuda=_driver_cuda(),
        python=f"{major}.{minor}.{micro}",
        tags=python_tags((major, minor), threaded=told["threaded"]) if told["cpython"] else frozenset(),
        torch=told["torch"],
        torch_cuda=told["cuda"],
    )


def python_tags(version: tuple[int, int], *, threaded: bool = False) -> frozenset[tags.Tag]:
    """The wheel tags that CPython of this version accepts on this machine."""
    name = f"cp{version[0]}{version[1]}"
    platforms = list(tags.platform_tags())
    abi = f"{name}t" if threaded else name
    own = tags.cpython_tags(version, abis=[abi], platforms=platforms)
    return frozenset({*own, *tags.compatible_tags(version, interpreter=name, platforms=platforms)})


def cuda_in_header(text: str) -> str | None:
    """The newest CUDA version that the driver supports, from nvidia-smi's usual output: no query gives it."""
    found = re.search(r"CUDA(?: UMD)? Version:\s*(\d+\.\d+)", text)
    return found[1] if found else None


def _driver_cuda() -> str | None:
    try:
        return cuda_in_header(run(["nvidia-smi"], check=False).output)
    except ToolMissingError:
        return None


def _python(python: Path) -> dict[str, Any]:
    try:
        answer = run([python, "-I", "-c", _ASK_PYTHON])
        told = json.loads(answer.output.strip().splitlines()[-1])
    except (Sm120Error, ValueError, IndexError) as exc:
        raise SettingError(
            f"--python {python} is not a Python that can be asked",
            why=str(exc),
            hint="give the path of an environment's python",
        ) from exc
    return dict(told)


def version_of(text: str) -> tuple[int, ...]:
    """``13.0`` → (13, 0)."""
    return Version(text).release
