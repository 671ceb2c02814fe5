"""What a run found, as a table, as JSON and as an exit code. Knows nothing of torch, GPUs or kernels.

Three states: passed, failed, not run with a reason. Something that was not run never counts as passed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

State = Literal["passed", "failed", "not run"]

EXIT_PASSED = 0
"""Every case passed, but for those whose feature this target does not have."""
EXIT_FAILED = 1
EXIT_NOTHING_RUN = 3
"""No case ran: no GPU, or none that this wheel has machine code for."""

NOT_ON_TARGET = "not on this target"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One case in one mode. ``worst`` is the largest error as a share of what is allowed: above 1 is a failure."""

    state: State
    why: str = ""
    worst: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseReport:
    """A case eager, and the same captured into a CUDA graph and replayed on other inputs."""

    name: str
    feature: str
    tolerance: str
    """Where the allowed error comes from."""
    eager: Outcome
    graph: Outcome
    note: str = ""

    @property
    def outcomes(self) -> tuple[Outcome, Outcome]:
        return (self.eager, self.graph)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    name: str
    capability: tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What a comparison found. ``worst`` is the largest |difference| / allowed; infinite where nothing is allowed."""

    shape: Sequence[int]
    expected_shape: Sequence[int]
    not_finite: int
    all_zero: bool
    """Every element is zero although some element of the reference is not."""
    worst: float


def judge(measured: Measured) -> Outcome:
    """Passed only for the right shape, finite, not all zeros, and within what is allowed."""
    if list(measured.shape) != list(measured.expected_shape):
        return Outcome(
            state="failed", why=f"shape {list(measured.shape)}, the reference has {list(measured.expected_shape)}"
        )
    if measured.not_finite:
        return Outcome(state="failed", why=f"{measured.not_finite} elements are NaN or infinite", worst=math.inf)
    if measured.all_zero:
        return Outcome(state="failed", why="all zeros", worst=measured.worst)
    if not measured.worst <= 1.0:
        return Outcome(state="failed", why=f"error is {measured.worst:.3g} times what is allowed", worst=measured.worst)
    return Outcome(state="passed", worst=measured.worst)


def worst_of(outcomes: Iterable[Outcome]) -> Outcome:
    """One outcome for several shapes: the first that is not passed, else the one nearest to its limit.

    Not run where there was none.
    """
    result: Outcome | None = None
    for each in outcomes:
        if each.state != "passed":
            return each
        if result is None or (each.worst or 0.0) > (result.worst or 0.0):
            result = each
    return result or Outcome(state="not run", why="no shape was tried")


def runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Whether a GPU executes machine code of ``target`` (``sm_120a``).

    Plain code runs on the same major with an equal or higher minor; ``a`` on exactly its own GPU; ``f`` on its family,
    which is the same major with an equal or higher minor (nvcc's manual, "GPU feature list").
    """
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", target)
    if match is None:
        raise ValueError(f"not a CUDA target: {target!r}")
    own = (int(match[1]), int(match[2]))
    if match[3] == "a":
        return capability == own
    return capability[0] == own[0] and capability[1] >= own[1]


def why_nothing_runs(archs: Sequence[str], gpu: Gpu | None) -> str:
    """Empty where this wheel has machine code for the GPU; else the reason that every case gets."""
    if gpu is None:
        return "no CUDA GPU"
    if any(runs_on(arch, gpu.capability) for arch in archs):
        return ""
    major, minor = gpu.capability
    return f"this wheel has {', '.join(archs)}, GPU is {major}.{minor}"


def exit_code(reports: Sequence[CaseReport]) -> int:
    """:data:`EXIT_FAILED` for any failure, or for anything unrun that the target has; see the constants."""
    outcomes = [outcome for report in reports for outcome in report.outcomes]
    if any(outcome.state == "failed" for outcome in outcomes):
        return EXIT_FAILED
    if not any(outcome.state == "passed" for outcome in outcomes):
        return EXIT_NOTHING_RUN
    skipped = [outcome for outcome in outcomes if outcome.state == "not run"]
    return EXIT_PASSED if all(NOT_ON_TARGET in outcome.why for outcome in skipped) else EXIT_FAILED


def table(reports: Sequence[CaseReport]) -> str:
    """One line for each case, then the counts."""
    rows = [("case", "feature", "eager", "graph", "worst error / allowed", "why")]
    for report in reports:
        # A case that did not run says so once, not once for each mode.
        whys = dict.fromkeys(outcome.why for outcome in report.outcomes if outcome.why)
        rows.append(
            (
                report.name,
                report.feature,
                report.eager.state,
                report.graph.state,
                _worst(report),
                "; ".join([*whys, *([report.note] if report.note else [])]),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    counts = ", ".join(f"{number} {state}" for state, number in count(reports).items())
    return "\n".join([*lines, "", f"{counts} (each case twice: eager, graph)"])


def _worst(report: CaseReport) -> str:
    errors = [outcome.worst for outcome in report.outcomes if outcome.worst is not None]
    return f"{max(errors):.2g}" if errors else ""


def count(reports: Sequence[CaseReport]) -> dict[State, int]:
    states = [outcome.state for report in reports for outcome in report.outcomes]
    return {"passed": states.count("passed"), "failed": states.count("failed"), "not run": states.count("not run")}


def document(
    reports: Sequence[CaseReport], *, build: Mapping[str, Any], gpu: Gpu | None, versions: Mapping[str, str]
) -> dict[str, Any]:
    """The run as JSON-ready data; ``schema`` changes when a field changes its meaning."""
    return {
        "schema": 1,
        "package": "sm120-selftest",
        "build": dict(build),
        "versions": dict(versions),
        "gpu": None if gpu is None else {"name": gpu.name, "capability": f"{gpu.capability[0]}.{gpu.capability[1]}"},
        "cases": [
            {
                "name": report.name,
                "feature": report.feature,
                "tolerance": report.tolerance,
                "note": report.note,
                **{mode: _outcome(o) for mode, o in zip(("eager", "graph"), report.outcomes, strict=True)},
            }
            for report in reports
        ],
        "counts": count(reports),
        "exit_code": exit_code(reports),
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    # JSON has no infinity; a failure without a finite error says why in words.
    worst = outcome.worst if outcome.worst is not None and math.isfinite(outcome.worst) else None
    return {"state": outcome.state, "why": outcome.why, "worst": worst}
