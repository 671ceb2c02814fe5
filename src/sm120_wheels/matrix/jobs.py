"""From the recipes to the matrix: recipe × version × CUDA × torch × Python × architecture × platform, as flat jobs.

What the recipes name but cannot be built is kept with its reason. Nothing here looks at this machine or at an index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from sm120_wheels import paths, recipe
from sm120_wheels.arch import Arch
from sm120_wheels.errors import DuplicateIdentifierError, UnsupportedTargetError
from sm120_wheels.files import content_key
from sm120_wheels.matrix.names import PLATFORMS, build_identifier, torch_cuda
from sm120_wheels.plan import BuildRequest, Plan, make_plan
from sm120_wheels.recipe import PackageVersion, Pairing, Recipe
from sm120_wheels.toolchain.locks import read_lock

#: The matrix is of whole wheels; this profile of the flashinfer-aot backend leaves nothing out.
WHOLE_PROFILE = "full"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One build of the matrix."""

    identifier: str
    recipe: str
    version: str
    distribution: str
    cuda: str
    torch: str
    python: str
    """The Python that it is built with: the lowest that is paired."""
    pythons: tuple[str, ...]
    """Every Python that gives this same identifier: one for a wheel of one Python's ABI, else all that are paired."""
    arch: str
    platform: str
    key: str
    """The plan's content key: it changes exactly when the wheel could."""
    toolchain_key: str
    """Changes when the locks or the Python do: what a cache of downloaded tools is keyed by."""
    profile: str | None
    partial: bool
    """Whether something that the target could run is left out, since this version cannot build it."""

    @property
    def request(self) -> BuildRequest:
        return BuildRequest(
            recipe=self.recipe,
            version=self.version,
            cuda=self.cuda,
            torch=self.torch,
            archs=(self.arch,),
            python=self.python,
            profile=self.profile,
            platform=self.platform,
        )

    @property
    def options(self) -> tuple[str, ...]:
        """What follows the recipe's name: ``--version 0.4.4 --cuda 13.0 …``."""
        given = (
            ("--version", self.version),
            ("--cuda", self.cuda),
            ("--torch", self.torch),
            ("--arch", self.arch),
            ("--python", self.python),
            *((("--profile", self.profile),) if self.profile else ()),
        )
        return tuple(part for pair in given for part in pair)

    @property
    def session(self) -> str:
        """The nox session that builds it."""
        return f"build_{self.recipe.replace('-', '_')}"

    def to_json(self) -> dict[str, Any]:
        """For CI: flat."""
        return {
            "identifier": self.identifier,
            "recipe": self.recipe,
            "version": self.version,
            "distribution": self.distribution,
            "cuda": self.cuda,
            "torch": self.torch,
            "python": self.python,
            "arch": self.arch,
            "platform": self.platform,
            "key": self.key,
            "toolchain_key": self.toolchain_key,
            "partial": self.partial,
            "session": self.session,
            "sm120": ["build", self.recipe, *self.options],
            "nox": ["-s", self.session, "--", *self.options],
        }


@dataclass(frozen=True, kw_only=True)
class Impossible:
    """A combination of values that the recipes name and that cannot be built."""

    identifier: str
    recipe: str
    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    jobs: tuple[Job, ...]
    impossible: tuple[Impossible, ...]

    def find(self, identifier: str) -> Job | None:
        return next((job for job in self.jobs if job.identifier == identifier), None)


def make_matrix(
    names: Sequence[str] | None = None,
    *,
    profile: str = WHOLE_PROFILE,
    recipes_root: Path | None = None,
    patches_root: Path | None = None,
) -> Matrix:
    """The matrix of all recipes, or the named ones, in the recipes' own order.

    ``profile``: modules of the flashinfer-aot backend's builds; with any other than the whole one they are partial.
    Raises what a plan raises for a broken recipe, :class:`UnsupportedTargetError` where one pairs a torch with a CUDA
    of another major, and :class:`DuplicateIdentifierError` where two different builds would have one name.
    """
    root = recipes_root or paths.recipes_root()
    jobs: dict[str, Job] = {}
    impossible: dict[str, Impossible] = {}
    for name in names if names is not None else recipe.names(root):
        package = recipe.load(name, root)
        for found in _combinations(package, profile, root, patches_root):
            if isinstance(found, Impossible):
                impossible.setdefault(found.identifier, found)
            elif found.identifier in jobs:
                raise _twice(jobs[found.identifier], found)
            else:
                jobs[found.identifier] = found
    return Matrix(jobs=tuple(jobs.values()), impossible=tuple(impossible.values()))


@dataclass(frozen=True, kw_only=True)
class _Combination:
    """One of what a recipe names, for all Pythons of its pairing."""

    package: Recipe
    number: str
    pairing: Pairing
    arch: str
    platform: str
    profile: str | None

    @property
    def pins(self) -> PackageVersion:
        return self.package.versions[self.number]

    def request(self, python: str) -> BuildRequest:
        return BuildRequest(
            recipe=self.package.name,
            version=self.number,
            cuda=self.pairing.cuda,
            torch=self.pairing.torch,
            archs=(self.arch,),
            python=python,
            profile=self.profile,
            platform=self.platform,
        )


def _combinations(package: Recipe, profile: str, root: Path, patches_root: Path | None) -> Iterator[Job | Impossible]:
    chosen = profile if package.backend == "flashinfer-aot" else None
    for number, pins in package.versions.items():
        for pairing, arch, platform in product(pins.pairings, package.architectures.supported, PLATFORMS):
            one = _Combination(
                package=package, number=number, pairing=pairing, arch=arch, platform=platform, profile=chosen
            )
            yield from _of_pythons(one, root, patches_root)


def _of_pythons(one: _Combination, root: Path, patches_root: Path | None) -> Iterator[Job | Impossible]:
    """A job for each Python where the wheel is bound to one, else one for all of them."""
    for python in one.pairing.python:
        try:
            plan = make_plan(one.request(python), recipes_root=root, patches_root=patches_root)
        except UnsupportedTargetError as exc:
            if _torch_of_another_major(one.pairing):
                raise
            yield _impossible(one, exc)
            return
        own = plan.python_tag.startswith(f"cp{python.replace('.', '')}-cp")
        if why := _torch_without_cuda(one.pairing.torch, one.platform, root):
            yield Impossible(identifier=plan.identifier, recipe=one.package.name, what=why[0], why=why[1])
        else:
            yield _job(plan, one, pythons=(python,) if own else one.pairing.python)
        if not own:
            return


def _job(plan: Plan, one: _Combination, *, pythons: tuple[str, ...]) -> Job:
    return Job(
        identifier=plan.identifier,
        recipe=one.package.name,
        version=plan.version,
        distribution=plan.distribution,
        cuda=plan.cuda,
        torch=plan.torch,
        python=plan.python,
        pythons=pythons,
        arch=one.arch,
        platform=plan.platform,
        key=plan.key,
        toolchain_key=content_key([plan.locks, plan.python, plan.platform]),
        profile=one.profile,
        partial=plan.partial,
    )


def _torch_of_another_major(pairing: Pairing) -> bool:
    built_for = torch_cuda(pairing.torch)
    return built_for is not None and built_for.split(".")[0] != pairing.cuda.split(".")[0]


def _impossible(one: _Combination, error: UnsupportedTargetError) -> Impossible:
    """Named as the build would be; where no plan exists, the Python tag is that of the lowest Python."""
    abi3, lowest = one.pins.abi3, one.pairing.python[0].replace(".", "")
    tag = f"cp{abi3.replace('.', '')}_abi3" if abi3 else f"cp{lowest}_cp{lowest}"
    identifier = build_identifier(
        distribution=one.pins.distribution,
        version=one.number,
        cuda=one.pairing.cuda,
        torch=one.pairing.torch,
        python_tag="py3_none" if one.package.backend == "flashinfer-aot" else tag,
        archs=(Arch.parse(one.arch),),
        platform=one.platform,
    )
    return Impossible(identifier=identifier, recipe=one.package.name, what=error.what, why=error.why)


def _torch_without_cuda(torch: str, platform: str, root: Path) -> tuple[str, str] | None:
    """What and why, where the index's torch brings CUDA libraries for other platforms only.

    Read from the lock: torch's CUDA builds require ``nvidia-…`` packages, its CPU builds do not.
    """
    entries = [entry for entry in read_lock(root / "locks" / f"torch-{torch}.txt") if entry.name.startswith("nvidia-")]
    machine = platform.removeprefix("linux_")
    environment = {"platform_machine": machine, "sys_platform": "linux", "platform_system": "Linux"}
    if not entries or any(_holds(str(entry.requirement.marker or ""), environment) for entry in entries):
        return None
    return (
        f"the index's torch {torch} for {platform} has no CUDA",
        f"recipes/locks/torch-{torch}.txt requires CUDA libraries on other platforms only; build by hand with "
        "--environment PYTHON where a torch with CUDA is installed",
    )


def _holds(marker: str, environment: dict[str, str]) -> bool:
    """Whether the parts of a marker that speak of the platform hold; parts about Python are left to the pairing."""
    for name, value in environment.items():
        named = re.findall(rf"""{name}\s*==\s*["']([^"']*)""", marker)
        if named and value not in named:
            return False
    return True


def _twice(first: Job, second: Job) -> DuplicateIdentifierError:
    def told(job: Job) -> str:
        return f"recipe {job.recipe} {job.version}, CUDA {job.cuda}, torch {job.torch}, {job.arch}"

    return DuplicateIdentifierError(
        f"two builds have one identifier: {first.identifier}",
        where=", ".join(dict.fromkeys(f"recipes/{job.recipe}/recipe.toml" for job in (first, second))),
        why=f"{told(first)}\n{told(second)}",
        hint="an identifier names torch by major.minor: keep one patch release of it in a version's pairings, and one "
        "recipe for a distribution",
    )
