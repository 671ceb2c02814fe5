"""What a build cost, as a record beside each wheel that it left: ``WHEEL.build.json``.

Times and memory are of one run on one machine, so they are neither in the wheel nor published; summaries read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from sm120_wheels import files
from sm120_wheels.errors import WheelInvalidError

_ENDING = ".build.json"


class Measured(BaseModel):
    """The record. Seconds are wall seconds unless they say otherwise; memory is in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    wheel_sha256: str
    identifier: str
    key: str
    seconds: float
    """All stages together."""
    stages: dict[str, float]
    cpu_seconds: float | None
    peak_memory: int | None
    """The most that all compiles together used at one time."""
    toolkit: str
    """Version of nvcc."""


def write_beside(
    wheels: Sequence[Mapping[str, Any]], *, identifier: str, key: str, stages: Mapping[str, Mapping[str, Any]]
) -> None:
    """Leave the record of a build beside each of its wheels. ``stages``: the records of the stages that were run."""
    seconds = {name: float(record["seconds"]) for name, record in stages.items()}
    compiled = stages.get("compile", {}).get("output", {})
    for wheel in wheels:
        record = Measured(
            wheel_sha256=wheel["sha256"],
            identifier=identifier,
            key=key,
            seconds=round(sum(seconds.values()), 3),
            stages=seconds,
            cpu_seconds=compiled.get("cpu_seconds"),
            peak_memory=compiled.get("scheduler", {}).get("peak_used"),
            toolkit=stages.get("provision", {}).get("output", {}).get("cuda", {}).get("version", ""),
        )
        files.write_json(path_of(Path(wheel["path"])), record.model_dump())


def path_of(wheel: Path) -> Path:
    return wheel.with_name(wheel.name + _ENDING)


def read_beside(wheel: Path, sha256: str) -> Measured | None:
    """The record beside a wheel with this sha256; None where there is none.

    Raises :class:`WheelInvalidError` where it cannot be read or is about another file.
    """
    path = path_of(wheel)
    if not path.is_file():
        return None
    try:
        record = Measured.model_validate_json(path.read_bytes())
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        raise WheelInvalidError(
            f"the build record beside {wheel.name} cannot be read",
            where=str(path),
            why=f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}",
            hint="remove it, or build again",
        ) from exc
    if record.wheel_sha256 != sha256:
        raise WheelInvalidError(
            f"the build record beside {wheel.name} is about another file",
            where=str(path),
            why=f"the wheel is sha256 {sha256}, the record speaks of {record.wheel_sha256}",
            hint="remove it, or build again",
        )
    return record
