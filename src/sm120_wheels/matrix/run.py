"""Builds jobs of the matrix one after another; one that fails does not stop the others.

Several builds at once would only share the same cores: one build fills the machine within its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sm120_wheels.errors import Sm120Error, UnsupportedTargetError
from sm120_wheels.files import human_seconds
from sm120_wheels.matrix.here import Here, obstacles, python_for
from sm120_wheels.matrix.jobs import Job
from sm120_wheels.plan import BuildRequest

if TYPE_CHECKING:
    from sm120_wheels.build import BuildResult


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What became of one job."""

    job: Job
    state: Literal["built", "failed", "not run"]
    why: str
    """Why it failed or was not run; ``up to date`` where an earlier run had built it."""
    wheels: tuple[Path, ...]
    seconds: float
    """Of the build that made the wheels; 0 where there is none."""
    error: Sm120Error | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "identifier": self.job.identifier,
            "state": self.state,
            "why": self.why,
            "wheels": [str(wheel) for wheel in self.wheels],
            "seconds": round(self.seconds, 1),
        }


def run_jobs(
    jobs: Sequence[Job], here: Here, build: Callable[[BuildRequest], BuildResult], tell: Callable[[str], None]
) -> tuple[Ran, ...]:
    """Build what this machine can build; ``tell`` is given a line before and after each build.

    Raises :class:`UnsupportedTargetError` where it can build none of the jobs.
    """
    blocked = {job.identifier: obstacles(job, here) for job in jobs}
    if all(blocked.values()):
        told = {why for found in blocked.values() for why in found}
        raise UnsupportedTargetError(
            f"none of the {len(jobs)} chosen builds can be made on this machine",
            why="\n".join(sorted(told)),
            hint="choose others with --only, or run this where the machine fits; `sm120 doctor` tells what is missing",
        )
    able = [job for job in jobs if not blocked[job.identifier]]
    results = []
    for job in jobs:
        if not (why := blocked[job.identifier]):
            tell(f"build {able.index(job) + 1} of {len(able)}: {job.identifier}")
        ran = _run(job, why, here, build)
        if not why:
            tell(_ended(ran))
        results.append(ran)
    return tuple(results)


def _ended(ran: Ran) -> str:
    if ran.state == "failed":
        return f"failed: {ran.why}"
    return ran.why or f"built in {human_seconds(ran.seconds)}"


def _run(job: Job, blocked: list[str], here: Here, build: Callable[[BuildRequest], BuildResult]) -> Ran:
    if blocked:
        return Ran(job=job, state="not run", why="; ".join(blocked), wheels=(), seconds=0.0)
    try:
        result = build(replace(job.request, python=python_for(job, here)))
    except Sm120Error as exc:
        if exc.exit_code >= 128:  # an interruption ends the run
            raise
        return Ran(job=job, state="failed", why=exc.what, wheels=(), seconds=0.0, error=exc)
    return Ran(
        job=job,
        state="built",
        why="up to date" if result.up_to_date else "",
        wheels=tuple(Path(wheel["path"]) for wheel in result.wheels),
        seconds=sum(record["seconds"] for record in result.stages.values()),
    )
