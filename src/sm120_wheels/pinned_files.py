"""The data files that shape a build beside recipe.toml, each with its sha256: locks, module profiles, templates."""

from __future__ import annotations

from pathlib import Path

from sm120_wheels import files
from sm120_wheels.errors import RecipeInvalidError
from sm120_wheels.recipe import PackageVersion, Pairing, Recipe


def recipe_files(folder: Path, package: Recipe, pins: PackageVersion) -> dict[str, str]:
    """Only the flashinfer-aot backend reads files beside recipe.toml; sources of our own are pinned as sources, and
    profiles/ holds measurements, which change no bytes."""
    if package.backend != "flashinfer-aot":
        return {}
    skipped = {"recipe.toml", "profiles"} | {source.folder for source in pins.sources.values() if source.folder}
    return {
        str(path.relative_to(folder)): files.sha256_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in skipped and "__pycache__" not in path.parts
    }


def lock_names(pins: PackageVersion, pairing_cuda: str, torch: str) -> list[str]:
    """Names of the locks in recipes/locks/ that a build installs from."""
    cuda = [f"cuda-{pairing_cuda}" + ("" if part == "compiler" else f"-{part}") for part in pins.cuda_needs]
    return [*cuda, f"torch-{torch}", *pins.tools]


def lock_files(pins: PackageVersion, pairing: Pairing, root: Path) -> dict[str, str]:
    found = {}
    for name in lock_names(pins, pairing.cuda, pairing.torch):
        file = root / "locks" / f"{name}.txt"
        if file.is_file():
            found[name] = files.sha256_file(file)
        elif name.startswith("cuda-"):
            found[name] = "system"  # no lock: this CUDA has to come from the system or an image
        else:
            raise RecipeInvalidError(f"no lock {name}", where=str(file), hint="make it with: sm120 lock")
    return found
