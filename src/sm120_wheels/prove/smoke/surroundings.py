"""The Python that the wheels are tested in: one that is there already, or a clean one made of locks.

A clean one has the torch that the wheels name and what the lock of their recipe holds, and nothing of ours. Wheels are
put in front of its search path (see :mod:`overlay`); it is shared between runs and never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from sm120_wheels.errors import ToolMissingError, UnsupportedTargetError
from sm120_wheels.prove.smoke.overlay import Unpacked
from sm120_wheels.toolchain.given import look_at
from sm120_wheels.toolchain.locks import LockRequest, known_locks, lock_path
from sm120_wheels.toolchain.pyenv import ensure_environment

#: Locks of build tools: not what a consumer has.
_BUILD_ONLY = re.compile(r"^(?:build-|cuda-|nox)")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """An interpreter under test."""

    python: Path
    version: str
    """Its Python, ``3.12.1``."""
    origin: str
    """``given`` or ``locked``."""
    packages: dict[str, str]
    """Distribution → version, without the wheels under test."""

    @property
    def torch(self) -> str:
        return self.packages.get("torch", "")


def given(python: Path, wheels: Sequence[Unpacked]) -> Surroundings:
    """An environment that is there. Raises where it lacks torch or has another one than a wheel requires."""
    found = look_at(python, isolated=True)
    for wheel in wheels:
        wanted = wheel.requirement("torch", found.python)
        if wanted is None:
            continue
        if "torch" not in found.packages:
            raise ToolMissingError(
                f"the environment has no torch, and {wheel.wheel.name} requires {wanted}",
                where=str(python),
                hint="install it there, or leave out --environment so that a clean environment is made",
            )
        if not wanted.specifier.contains(Version(found.packages["torch"]).public, prereleases=True):
            raise UnsupportedTargetError(
                f"the environment has torch {found.packages['torch']}, and {wheel.wheel.name} requires {wanted}",
                where=str(python),
                hint="another environment, or leave out --environment so that one with that torch is made",
            )
    return Surroundings(python=python.absolute(), version=found.python, origin="given", packages=dict(found.packages))


def locked(
    wheels: Sequence[Unpacked],
    *,
    python: str,
    cache_root: Path,
    offline: bool,
    on_line: Callable[[str], None] | None = None,
) -> Surroundings:
    """A clean environment for these wheels, made of locks; ``python`` is a version or a path."""
    names = list(dict.fromkeys([*_recipe_locks(wheels), _torch_lock(wheels)]))
    environment = ensure_environment(
        python,
        [LockRequest(path=lock_path(name)) for name in names],
        cache_root=cache_root,
        offline=offline,
        on_line=on_line,
    )
    return Surroundings(
        python=environment.python, version=environment.version, origin="locked", packages=environment.packages
    )


def _recipe_locks(wheels: Sequence[Unpacked]) -> list[str]:
    known = known_locks()
    return [
        name
        for wheel in wheels
        for name in wheel.locks
        if name in known and not _BUILD_ONLY.match(name) and not name.startswith("torch-")
    ]


def _torch_lock(wheels: Sequence[Unpacked]) -> str:
    """The lock of a torch that every wheel accepts: the newest that fits."""
    wanted = SpecifierSet()
    for wheel in wheels:
        requirement = wheel.requirement("torch", "3.12.0")
        wanted &= requirement.specifier if requirement is not None else SpecifierSet()
    versions = sorted(Version(name.removeprefix("torch-")) for name in known_locks() if name.startswith("torch-"))
    fitting = [v for v in versions if wanted.contains(v, prereleases=True)]
    if not fitting:
        raise UnsupportedTargetError(
            f"no locked torch fits {', '.join(wheel.wheel.name for wheel in wheels)}",
            why=f"they require torch{wanted}; locked are {', '.join(map(str, versions))}",
            hint="give an environment that has it: --environment /path/to/python",
        )
    return f"torch-{fitting[-1]}"


def unmet(surroundings: Surroundings, wheels: Sequence[Unpacked]) -> list[str]:
    """Requirements of the wheels that neither the environment nor another wheel meets."""
    there = {**surroundings.packages, **{wheel.distribution: wheel.version for wheel in wheels}}
    found = []
    for wheel in wheels:
        lacks = lacking(wheel.requirements(surroundings.version), there)
        found += [f"{wheel.distribution} requires {text}" for text in lacks]
    return list(dict.fromkeys(found))


def lacking(requirements: Iterable[Requirement], there: Mapping[str, str]) -> list[str]:
    """Those requirements that the distributions ``there`` (name → version) do not meet, each with what is there."""
    found = []
    for requirement in requirements:
        version = there.get(str(canonicalize_name(requirement.name)))
        if version is None:
            found.append(f"{requirement}: it is not there")
        elif not _fits(requirement.specifier, version):
            found.append(f"{requirement}: {version} is there")
    return found


def _fits(specifier: SpecifierSet, version: str) -> bool:
    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
