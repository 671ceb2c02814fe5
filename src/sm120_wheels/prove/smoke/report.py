"""A finished run: its state, its record for each wheel, and its last lines on a terminal. Writes nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from sm120_wheels import __version__
from sm120_wheels.files import human_bytes, human_seconds
from sm120_wheels.prove.names import brief
from sm120_wheels.prove.smoke.coverage import Kernels, Operator
from sm120_wheels.prove.smoke.model import CaseResult, State

_KERNELS_KEPT = 5000
_KERNEL_WIDTH = 240


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What was tested: a wheel, or a package that is installed."""

    name: str
    """The wheel's filename, or ``installed sglang-kernel 0.4.4``."""
    sha256: str
    """Empty for what is no wheel."""
    operators: Sequence[Operator]
    unregistered: Sequence[str]
    kernels: Kernels
    suites: Sequence[str]
    """The suites whose cases are about it."""
    verdict: str = ""
    """What the audit says of this GPU: ``runs``, ``part``, ``none``, ``no-cuda``."""

    @classmethod
    def untested(cls, name: str, sha256: str, verdict: str) -> Subject:
        """One of which nothing was launched."""
        nothing = Kernels(in_wheel=0, launched=(), never=(), unknown="nothing was launched")
        return cls(name=name, sha256=sha256, operators=(), unregistered=(), kernels=nothing, suites=(), verdict=verdict)


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run over one or several subjects."""

    backend: str
    when: str
    """RFC 3339, UTC."""
    seconds: float
    gpus: Sequence[Mapping[str, Any]]
    """Name, capability, memory (bytes) and driver of each; empty where there is none."""
    environment: Mapping[str, Any]
    """Python, torch, CUDA, and every package."""
    isolation: Mapping[str, Any]
    """What the workers were kept from, and what was not possible here."""
    results: Sequence[CaseResult]
    subjects: Sequence[Subject]
    selection: str = ""
    """How the cases were narrowed down (``-k rmsnorm``); empty where all were meant."""
    why_not: str = ""
    """Why nothing was launched at all."""
    notes: Sequence[str] = field(default=())
    workers: int = 1
    junit: str = ""
    """The run as JUnit XML, where that was asked for."""
    start_seconds: float = 0.0
    """What the first worker took to import everything."""

    @classmethod
    def nothing(cls, why: str, *, gpus: Sequence[Mapping[str, Any]]) -> Report:
        """A run that did not begin."""
        return cls(
            backend="cuda",
            when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            seconds=0.0,
            gpus=gpus,
            environment={},
            isolation={},
            results=(),
            subjects=(),
            why_not=why,
            workers=0,
        )

    def of(self, subject: Subject) -> list[CaseResult]:
        return [r for r in self.results if r.spec.suite in subject.suites]


def counts(results: Sequence[CaseResult]) -> dict[str, int]:
    found = Counter(r.state for r in results)
    return {"passed": found["passed"], "failed": found["failed"], "not_run": found["not run"]}


def graphs(results: Sequence[CaseResult]) -> tuple[dict[str, int], Counter[str]]:
    """How the stage "graph" of these cases ended, and why it was not run: a case passes without it."""
    stages = [s for r in results for s in r.stages if s.name == "graph"]
    found = Counter(s.state for s in stages)
    ends = {"passed": found["passed"], "failed": found["failed"], "not_run": found["not run"]}
    return ends, Counter(s.why for s in stages if s.state == "not run")


def judge(report: Report, results: Sequence[CaseResult]) -> tuple[State, str]:
    """The state of a run over these cases, and the reason. Only a whole run on a GPU can be "passed"."""
    if report.why_not:
        return "not run", report.why_not
    failed = [r for r in results if r.state == "failed"]
    if failed:
        more = f", and {len(failed) - 1} more failed" if len(failed) > 1 else ""
        return "failed", f"{failed[0].spec.node}: {failed[0].why[:300]}{more}"
    if not results:
        return "not run", "there is no case for it"
    if not any(r.state == "passed" and not r.empty for r in results):
        return "not run", next((r.why for r in results if r.state == "not run"), "only empty inputs were given")
    if report.backend != "cuda":
        return "not run", f"the {report.backend} backend launches nothing on a GPU"
    if report.selection:
        return "not run", f"only some cases were asked for ({report.selection}); those passed"
    return "passed", ""


def record(report: Report, subject: Subject) -> dict[str, Any]:
    """The evidence about one wheel, as ``<wheel>.smoke.json`` holds it. Sizes are bytes, times seconds."""
    results = report.of(subject)
    state, reason = judge(report, results)
    gpu = report.gpus[0] if report.gpus else {}
    by_state = Counter(o.state for o in subject.operators)
    return {
        "format": 1,
        "tool": f"sm120-wheels {__version__}",
        "wheel": subject.name,
        **({"wheel_sha256": subject.sha256} if subject.sha256 else {}),
        "state": state,
        "reason": reason,
        "backend": report.backend,
        "gpu": {k: v for k, v in gpu.items() if k != "driver"},
        "gpus": len(report.gpus),
        "driver": gpu.get("driver", ""),
        "verdict": subject.verdict,
        "environment": dict(report.environment),
        "isolation": dict(report.isolation),
        "when": report.when,
        "seconds": round(report.seconds, 2),
        "workers": report.workers,
        "start_seconds": round(report.start_seconds, 2),
        "selection": report.selection,
        "notes": list(report.notes),
        "counts": counts(results),
        "graphs": graphs(results)[0],
        "operators": {
            "registered": len(subject.operators),
            "passed": by_state["passed"],
            "failed": by_state["failed"],
            "not_run": by_state["not run"],
            "list": [_operator(o) for o in subject.operators],
            "unregistered": list(subject.unregistered),
        },
        "kernels": _kernels(subject.kernels),
        "cases": [_case(r) for r in results],
    }


def _operator(operator: Operator) -> dict[str, Any]:
    found: dict[str, Any] = {"name": operator.name, "state": operator.state, "cases": operator.cases}
    if operator.why:
        found["why"] = operator.why[:400]
    if operator.reached and operator.state == "not run":
        found["reached"] = True
    return found


def _kernels(kernels: Kernels) -> dict[str, Any]:
    never = [brief(name, _KERNEL_WIDTH) for name in kernels.never]
    return {
        "in_wheel": kernels.in_wheel,
        "launched": len(kernels.launched),
        "unknown": kernels.unknown,
        "launched_list": [brief(name, _KERNEL_WIDTH) for name in kernels.launched[:_KERNELS_KEPT]],
        "never_launched": never[:_KERNELS_KEPT],
    }


def _case(result: CaseResult) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": result.spec.node,
        "operators": list(result.spec.operators),
        "state": result.state,
        "seconds": round(result.seconds, 4),
        "stages": [
            {"name": s.name, "state": s.state, "seconds": round(s.seconds, 4)}
            | ({"why": s.why} if s.why else {})
            | ({"results": [dict(r) for r in s.results]} if s.results else {})
            for s in result.stages
        ],
    }
    if result.why:
        found["why"] = result.why
    if result.empty:
        found["empty"] = True
    if result.peak_memory:
        found["peak_memory"] = result.peak_memory
    if result.notes:
        found["notes"] = list(result.notes)
    if result.kernels:
        found["kernels"] = len(result.kernels)
    if result.hang is not None:
        found["hang"] = vars(result.hang)
    if result.output:
        found["output"] = result.output[-3000:]
    return found


def to_terminal(report: Report) -> str:
    """The last lines of a run."""
    lines = []
    for subject in report.subjects:
        results = report.of(subject)
        state, reason = judge(report, results)
        found = counts(results)
        lines.append(f"{subject.name}: {state}" + (f" ({reason})" if reason else ""))
        lines.append(f"  cases      {found['passed']} passed, {found['failed']} failed, {found['not_run']} not run")
        ends, _ = graphs(results)
        lines.append(f"  graphs     {ends['passed']} passed, {ends['failed']} failed, {ends['not_run']} not run")
        by_state = Counter(o.state for o in subject.operators)
        lines.append(
            f"  operators  {by_state['passed']} passed, {by_state['failed']} failed, {by_state['not run']} not run, "
            f"of {len(subject.operators)} registered"
        )
        no_case = sum(o.why == "no case" for o in subject.operators)
        if no_case:
            names = [o.name.rpartition("::")[2] for o in subject.operators if o.why == "no case"]
            lines.append(f"             {no_case} have no case: {', '.join(names[:12])}{' …' if no_case > 12 else ''}")
        if subject.unregistered:
            lines.append(f"             not registered, but named by cases: {', '.join(subject.unregistered[:8])}")
        kernels = subject.kernels
        lines.append(
            f"  kernels    {len(kernels.launched)} launched of {kernels.in_wheel} in the wheel"
            + (f" ({kernels.unknown})" if kernels.unknown else "")
        )
    reasons = Counter(r.why for r in report.results if r.state == "not run")
    lines += [f"not run: {count} × {why[:200]}" for why, count in reasons.most_common(10)]
    reasons = graphs(report.results)[1]
    lines += [f"graph not run: {count} × {why[:200]}" for why, count in reasons.most_common(10)]
    lines += [f"note: {note}" for note in report.notes]
    if report.gpus:
        gpu = report.gpus[0]
        size = human_bytes(gpu.get("memory", 0))
        lines.append(f"{gpu['name']} ({gpu['capability']}, {size}), driver {gpu.get('driver') or 'unknown'}")
    lines.append(
        f"{human_seconds(report.seconds)}, of which the first worker took {human_seconds(report.start_seconds)} "
        f"to start; {report.workers} workers"
    )
    return "\n".join(lines)
