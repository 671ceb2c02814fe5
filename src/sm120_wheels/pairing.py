"""Which CUDA, torch and Python a build takes of those that the recipe pairs; what does not go together is refused.

Pure: it looks at a recipe and at what was asked for, and at nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from sm120_wheels.arch import Arch
from sm120_wheels.errors import UnknownCudaError, UnsupportedTargetError, near_misses
from sm120_wheels.matrix import names
from sm120_wheels.recipe import PackageVersion, Pairing, Recipe


def choose_pairing(
    cuda: str | None, torch: str | None, *, package: Recipe, number: str, pins: PackageVersion, archs: Sequence[Arch]
) -> Pairing:
    """The first pairing of version ``number`` that has this CUDA and torch (None: any).

    Raises :class:`UnknownCudaError`, or :class:`UnsupportedTargetError` for a torch of another CUDA major, one that is
    not paired, and a target that this CUDA cannot compile for.
    """
    known = list(dict.fromkeys(pairing.cuda for pairing in pins.pairings))
    cuda = cuda or pins.pairings[0].cuda
    if cuda not in known:
        raise UnknownCudaError(
            f"{package.name} {number} is not built with CUDA {cuda}",
            where=f"recipes/{package.name}/recipe.toml, key versions.{number}.pairings",
            hint=near_misses(cuda, known),
        )
    fitting = [pairing for pairing in pins.pairings if pairing.cuda == cuda]
    if torch is not None:
        wanted = [p for p in fitting if p.torch == torch or p.torch.startswith(f"{torch}.")]
        if not wanted:
            _refuse_torch(torch, cuda, package, number, pins)
        fitting = wanted
    pairing = fitting[0]
    built_for = names.torch_cuda(pairing.torch)
    if built_for and built_for.split(".")[0] != cuda.split(".")[0]:
        raise UnsupportedTargetError(
            f"torch {pairing.torch} does not go with CUDA {cuda}",
            where=f"recipes/{package.name}/recipe.toml, key versions.{number}.pairings",
            why=f"the index's torch {pairing.torch} is built for CUDA {built_for}; majors must agree",
        )
    for arch in archs:
        if tuple(int(part) for part in cuda.split(".")) < arch.min_cuda:
            raise UnsupportedTargetError(
                f"CUDA {cuda} cannot compile for {arch}",
                why=f"{arch} needs CUDA {arch.min_cuda[0]}.{arch.min_cuda[1]} or newer",
                hint=f"--cuda with one of {', '.join(known)}",
            )
    return pairing


def _refuse_torch(torch: str, cuda: str, package: Recipe, number: str, pins: PackageVersion) -> None:
    pairs = ", ".join(f"CUDA {p.cuda} with torch {p.torch}" for p in pins.pairings)
    try:
        built_for = names.torch_cuda(str(Version(torch)))
    except ValueError:
        built_for = None
    why = f"pinned pairings: {pairs}"
    if built_for and built_for.split(".")[0] != cuda.split(".")[0]:
        why = f"torch {torch} is built for CUDA {built_for}, whose major differs; {why}"
    raise UnsupportedTargetError(
        f"{package.name} {number} is not built with CUDA {cuda} against torch {torch}",
        where=f"recipes/{package.name}/recipe.toml, key versions.{number}.pairings",
        why=why,
        hint="take a pinned pairing, or add one to the recipe",
    )


def choose_python(python: str | None, pairing: Pairing, running: str) -> str:
    """The Python to build with: the one asked for, else the running one where it is paired, else the first that is."""
    if python is None:
        return running if running in pairing.python else pairing.python[0]
    if python not in pairing.python:
        raise UnsupportedTargetError(
            f"no build with Python {python}",
            why=f"torch {pairing.torch} is paired with Python {', '.join(pairing.python)}",
            hint=near_misses(python, pairing.python),
        )
    return python
