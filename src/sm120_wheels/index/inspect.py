"""Reads from a wheel what the index says about it: the seam between the index and the wheel reader.

Everything in the wheel is somebody's word; what gates a wheel is decided in ``gates.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.index.names import read_labels
from sm120_wheels.wheel.archive import open_wheel
from sm120_wheels.wheel.finish import BUILD_RECORD, read_build_record
from sm120_wheels.wheel.version import is_partial

_SUMMARY_LENGTH = 512


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """What a wheel says about itself."""

    project: str
    version: str
    summary: str
    requires_python: str | None
    requires_dist: tuple[str, ...]
    metadata: bytes
    label: str | None
    """The CUDA index its local version names."""
    torch: str | None
    archs: tuple[str, ...]
    pure: bool
    """Whether it is for any platform."""
    without: tuple[str, ...]
    """Components that were left out; ``unnamed components`` where only the version's label says so."""
    build: dict[str, Any] | None
    build_json: bytes | None
    sboms: tuple[bytes, ...]


def inspect_wheel(path: Path, *, verify: bool = True) -> Inspected:
    """Read a wheel; with ``verify``, every byte against RECORD. Raises :class:`WheelInvalidError`."""
    with open_wheel(path) as wheel:
        if verify:
            wheel.verify()
        info = wheel.dist_info
        metadata = wheel.metadata
        version = str(Version(metadata["Version"]))
        labels = read_labels(version)
        record = read_build_record(wheel)
        build = _planned(record) if record is not None else None
        archs = _strings(build, "archs") or labels.archs
        torch = build.get("torch") if build else None
        return Inspected(
            project=wheel.filename.distribution,
            version=version,
            summary=" ".join(str(metadata.get("Summary", "")).split())[:_SUMMARY_LENGTH],
            requires_python=_requires_python(metadata.get("Requires-Python"), path),
            requires_dist=tuple(_requirement(str(r), path) for r in metadata.get_all("Requires-Dist", [])),
            metadata=wheel.read(f"{info}/METADATA"),
            label=labels.index,
            torch=".".join(str(torch).split("+")[0].split(".")[:2]) if torch else labels.torch,
            archs=archs,
            pure=all(tag.platform == "any" for tag in wheel.filename.tags),
            without=_strings(build, "without") or (("unnamed components",) if is_partial(version) else ()),
            build=build,
            build_json=None if record is None else wheel.read(f"{info}/{BUILD_RECORD}"),
            sboms=tuple(
                wheel.read(m) for m in wheel.members if m.startswith(f"{info}/sboms/") and m.endswith(".cdx.json")
            ),
        )


def _planned(record: dict[str, Any]) -> dict[str, Any]:
    """The record with what its plan says at hand, in the index's words: identifier, cuda, torch, archs, without."""
    plan = record.get("plan")
    told = {**(plan if isinstance(plan, dict) else {}), **record}
    return {**told, "without": told.get("without") or told.get("left_out")}


def _strings(record: dict[str, Any] | None, key: str) -> tuple[str, ...]:
    value = (record or {}).get(key) or ()
    return tuple(str(v) for v in value) if isinstance(value, (list, tuple)) else (str(value),)


def _requirement(text: str, path: Path) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as exc:
        raise WheelInvalidError(
            f"{path.name} has a Requires-Dist that no installer can read",
            where=f"{path}: METADATA",
            why=f"{text!a}: {str(exc).splitlines()[0]}",
            hint="build the wheel with valid dependencies",
        ) from exc
    return " ".join(text.split())


def _requires_python(text: str | None, path: Path) -> str | None:
    if not text:
        return None
    try:
        SpecifierSet(text)
    except InvalidSpecifier as exc:
        raise WheelInvalidError(
            f"{path.name} has a Requires-Python that no installer can read",
            where=f"{path}: METADATA",
            why=str(exc),
            hint="build the wheel with a valid requires-python",
        ) from exc
    return text.strip()
