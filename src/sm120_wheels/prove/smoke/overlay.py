"""Puts a wheel into a folder of its own, which goes in front of the search path: nothing is installed anywhere.

The same content gives the same folder, so that a second run finds it. Scripts and headers of a wheel are left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sm120_wheels import files
from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.toolchain.locks import marker_environment
from sm120_wheels.wheel.archive import open_wheel
from sm120_wheels.wheel.finish import read_build_record


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """A wheel, ready to be imported from."""

    wheel: Path
    sha256: str
    distribution: str
    """Normalised."""
    version: str
    root: Path
    requires: tuple[str, ...]
    """Its Requires-Dist lines."""
    recipe: str
    """The recipe it was built from; empty for a wheel of somebody else."""
    locks: tuple[str, ...]
    """The locks that its build record names."""

    def requirement(self, name: str, python: str) -> Requirement | None:
        """What it requires of a distribution in that Python, extras aside."""
        for found in self.requirements(python):
            if canonicalize_name(found.name) == name:
                return found
        return None

    def requirements(self, python: str) -> Iterator[Requirement]:
        """Its requirements that hold in that Python (``3.12.1``), extras aside."""
        return holding(self.requires, python)


def holding(requires: Iterable[str], python: str) -> Iterator[Requirement]:
    """Those ``Requires-Dist`` lines that hold in that Python, extras aside."""
    environment = marker_environment(python)
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # an installer would refuse it; the index does
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def unpack(wheel: Path, *, cache_root: Path) -> Unpacked:
    """Unpack a wheel below the cache, checked against RECORD. Raises WheelInvalidError for what is damaged."""
    if not wheel.is_file():
        raise WheelInvalidError(
            f"no wheel at {wheel}", where=str(wheel.absolute()), hint="give the path of a .whl file"
        )
    sha256 = files.sha256_file(wheel)
    root = cache_root / "smoke" / "overlays" / sha256[:24]
    with open_wheel(wheel, same_tags=False) as opened:
        record = read_build_record(opened) or {}
        plan = record.get("plan")
        plan = plan if isinstance(plan, dict) else {}
        locks = plan.get("locks")
        if not root.is_dir():
            with files.atomic_path(root) as temporary:
                temporary.mkdir()
                for name in opened.members:
                    place = _place(name)
                    if place is not None:
                        _move(opened.extract(name, temporary), temporary / place)
                for data in temporary.glob("*.data"):
                    shutil.rmtree(data)
        return Unpacked(
            wheel=wheel,
            sha256=sha256,
            distribution=opened.filename.distribution,
            version=str(opened.filename.version),
            root=root,
            requires=tuple(str(line) for line in opened.metadata.get_all("Requires-Dist", [])),
            recipe=str(plan.get("recipe", "")),
            locks=tuple(sorted(str(name) for name in locks)) if isinstance(locks, dict) else (),
        )


def _place(member: str) -> str | None:
    """Where a member goes below site-packages; None for what goes elsewhere."""
    top, _, rest = member.partition("/")
    if not top.endswith(".data"):
        return member
    kind, _, inner = rest.partition("/")
    return inner if kind in ("purelib", "platlib") else None


def _move(source: Path, target: Path) -> None:
    if source != target:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
