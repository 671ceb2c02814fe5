"""What is published against what is expected: for each job of the matrix, and for what no job accounts for.

A function of values; where the published wheels come from is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sm120_wheels.index.model import State, Wheel
from sm120_wheels.matrix.jobs import Job

Published = Literal["published", "partial", "yanked", "missing"]


@dataclass(frozen=True, kw_only=True)
class Covered:
    """One expected build, and what an index has of it."""

    job: Job
    state: Published
    """``partial``: only wheels that leave something out; ``yanked``: nothing but yanked ones."""
    wheels: tuple[str, ...]
    """Filenames in good standing, or the yanked ones where there is nothing else."""
    smoke: State
    """``passed`` on some GPU and failed on none; ``failed`` on some; else ``not run``."""
    exceptions: tuple[str, ...]
    """Gates that were overruled when they were published."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    expected: tuple[Covered, ...]
    others: tuple[str, ...]
    """Filenames of published wheels whose build is none of the expected ones."""

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(one.job.identifier for one in self.expected if one.state != "published")


def coverage(jobs: Sequence[Job], wheels: Iterable[Wheel]) -> Coverage:
    """Compare. A wheel belongs to the job whose identifier its build record names."""
    by_identifier: dict[str, list[Wheel]] = {}
    for wheel in wheels:
        by_identifier.setdefault(wheel.identifier, []).append(wheel)
    expected = tuple(_covered(job, by_identifier.pop(job.identifier, [])) for job in jobs)
    others = sorted(wheel.filename for rest in by_identifier.values() for wheel in rest)
    return Coverage(expected=expected, others=tuple(others))


def _covered(job: Job, wheels: Sequence[Wheel]) -> Covered:
    standing = [wheel for wheel in wheels if wheel.yanked is None]
    whole = [wheel for wheel in standing if not wheel.without]
    shown = whole or standing or wheels
    state: Published = "published" if whole else "partial" if standing else "yanked" if wheels else "missing"
    return Covered(
        job=job,
        state=state,
        wheels=tuple(sorted(wheel.filename for wheel in shown)),
        smoke=_smoke(shown),
        exceptions=tuple(sorted({gate for wheel in shown for gate in wheel.exceptions})),
    )


def _smoke(wheels: Sequence[Wheel]) -> State:
    states = {smoke.state for wheel in wheels for smoke in wheel.smokes()}
    return "failed" if "failed" in states else "passed" if "passed" in states else "not run"
