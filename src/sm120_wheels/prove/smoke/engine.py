"""Runs cases on workers: starts a new one when one is lost, and turns what happened into the result of a case.

Nothing here knows pytest, records or wheels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from sm120_wheels.gpus import Gpu, busy
from sm120_wheels.prove.smoke.launches import last_kernel, shown
from sm120_wheels.prove.smoke.model import CaseResult, CaseSpec, Hang, Hello, StageResult, State
from sm120_wheels.prove.smoke.sanitizer import Sanitizer
from sm120_wheels.prove.smoke.workers import Answer, Outcome, Setup, Team

#: A worker that cannot even start is tried this often before the rest of the cases fail without a try.
_STARTS = 2
#: Hangs of a run that are repeated to name their last kernel: a wheel that always hangs must not take twice as long.
_REPEATS = 8
_P2P_OFF = {"NCCL_P2P_DISABLE": "1", "SM120_SMOKE_P2P": "off"}


@dataclass(kw_only=True)
class Engine:
    """The workers of one run."""

    setup: Setup
    gpus: list[Gpu]
    """Those that this run may use; empty on the host backend."""
    deadline: float | None = None
    """Seconds for each case, in place of its own."""
    sanitizer: Sanitizer | None = None
    left_out: Callable[[CaseSpec], str] = lambda spec: ""
    """Why the packages under test rightly lack what a case is for; empty where they do not."""
    on_start: Callable[[], None] = lambda: None
    """Called before a worker is started: that takes seconds."""
    hello: Hello | None = None
    started: int = 0
    """Workers and teams that were started."""
    lost: str = ""
    """Why no worker can be started at all."""
    _team: Team | None = None
    _failures: int = 0
    _repeats: int = 0
    _why_not_started: str = ""

    def run(self, spec: CaseSpec) -> CaseResult:
        """Run one case to its end, whatever it does."""
        capability = self.gpus[0].capability if self.gpus else None
        unmet = self.left_out(spec) or spec.unmet(capability=capability, gpus=self._gpu_count())
        if unmet:
            return CaseResult(spec=spec, state="not run", why=unmet)
        return self._together(spec) if spec.gpus > 1 else self._alone(spec)

    def _gpu_count(self) -> int:
        return len(self.gpus) if self.setup.backend == "cuda" else 8

    def _alone(self, spec: CaseSpec) -> CaseResult:
        if self._team is None or not self._team.usable:
            if self.lost:
                return CaseResult(spec=spec, state="failed", why=self.lost)
            self._team = self._started()
            if self._team is None:
                return CaseResult(spec=spec, state="failed", why=self.lost or self._why_not_started)
        seconds = self._deadline(spec)
        outcome = self._team.run(spec.command(trace=self.sanitizer is None), seconds)
        result = self._result(spec, outcome, seconds)
        answer = outcome.answers[0]
        if outcome.late or answer.died or (answer.end is not None and answer.end["broken"]):
            self.close() if self.sanitizer is not None else self.kill()  # the tool still has to write its report
        if self.sanitizer is not None:
            result = self.sanitizer.judge(result)
        return self._named(result) if outcome.late else result

    def _started(self) -> Team | None:
        self.on_start()
        self.started += 1
        team = Team(self.setup, number=self.started)
        if team.problem:
            self._failures += 1
            self._why_not_started = f"nothing can be launched: {team.problem}"
            if self._failures >= _STARTS:
                self.lost = self._why_not_started
            return None
        self._failures = 0
        if self.hello is None:
            self.hello = _hello(team.hello)
        return team

    def _deadline(self, spec: CaseSpec) -> float:
        slower = 1.0 if self.sanitizer is None else self.sanitizer.slower
        return (self.deadline or spec.deadline) * slower

    def _together(self, spec: CaseSpec) -> CaseResult:
        """A case of several ranks: a team of its own, and once more with P2P off where it hangs or fails."""
        if self.sanitizer is not None:
            return CaseResult(spec=spec, state="not run", why="compute-sanitizer runs cases of one GPU only")
        first, late = self._team_run(spec, {})
        launched = first.hang is not None or any(s.name != "prepare" for s in first.stages) or not first.stages
        if first.state != "failed" or not launched:
            return first
        again, _ = self._team_run(spec, _P2P_OFF)
        if again.state == "passed":
            note = (
                "with P2P between the GPUs off (NCCL_P2P_DISABLE=1) the same case passes: the host is to blame "
                "(PCIe ACS, IOMMU or topology), not the wheel"
            )
        else:
            note = f"with P2P between the GPUs off it fails as well: {again.why}"
        named = self._named(first) if late else first
        return replace(named, why=f"{named.why}; {note}")

    def _named(self, result: CaseResult) -> CaseResult:
        """The hang with its last kernel: the case is repeated in a new process that notes its launches. Doing so
        always would cost every case; a process that hangs already cannot be asked."""
        if result.hang is None:
            return result
        text, found = self._repeated(result)
        hang = replace(result.hang, last_kernel=text, launches=found)
        return replace(result, why=f"{result.why}; last kernel launched: {text}", hang=hang)

    def _repeated(self, result: CaseResult) -> tuple[str, tuple[str, ...]]:
        if self.sanitizer is not None:
            return "not known: compute-sanitizer leaves no room for CUPTI", ()
        if self._repeats >= _REPEATS:
            return f"not known: only the first {_REPEATS} hangs of a run are repeated", ()
        self._repeats += 1
        self.on_start()
        self.started += 1
        spec, setup = result.spec, replace(self.setup, launches=True)
        team = Team(setup, ranks=spec.gpus, number=self.started)
        try:
            if team.problem:
                return f"not known: it could not be repeated: {team.problem}", ()
            seconds = self._deadline(spec)
            outcome = team.run(spec.command(trace=False), seconds)
            told = team.launched()
        finally:
            team.stop()
        if not outcome.late:
            return "not known: when it was repeated it did not hang", ()
        prefixes = [f"rank {number}: " if len(told) > 1 else "" for number in range(len(told))]
        texts = [f"not known: {why}" if why else last_kernel(found) for why, found in told]
        return (
            "; ".join(prefix + text for prefix, text in zip(prefixes, texts, strict=True)),
            tuple(p + line for p, (_, found) in zip(prefixes, told, strict=True) for line in shown(found)),
        )

    def _team_run(self, spec: CaseSpec, extra: Mapping[str, str]) -> tuple[CaseResult, bool]:
        """The result, and whether it passed its deadline."""
        self.close()  # one process at a time on a GPU: the single worker's memory and context would be in the way
        self.on_start()
        self.started += 1
        team = Team(self.setup, ranks=spec.gpus, number=self.started, extra=extra)
        try:
            if team.problem:
                return CaseResult(spec=spec, state="failed", why=f"nothing can be launched: {team.problem}"), False
            seconds = self._deadline(spec)
            outcome = team.run(spec.command(trace=True), seconds)
            if self.hello is None:
                self.hello = _hello(team.hello)
            result = self._result(spec, outcome, seconds)
        finally:
            team.stop()
        return result, outcome.late

    def _result(self, spec: CaseSpec, outcome: Outcome, deadline: float) -> CaseResult:
        ends = [answer.end for answer in outcome.answers if answer.end is not None]
        answer = worst(outcome.answers)
        stages = _stages(answer)
        state: State = (
            "failed" if outcome.late or answer.died else cast(State, (answer.end or {}).get("state", "failed"))
        )
        why = next((s.why for s in stages if s.state == "failed"), "")
        if outcome.late:
            at = f" at {answer.stage}: {answer.step}" if answer.stage else ""
            why = f"hang: no end after {deadline:g} s{at}"
        elif answer.died:
            at = f" at {answer.stage}: {answer.step}" if answer.stage else ""
            why = f"the process {answer.died}{at}"
        elif state == "not run":
            why = next((s.why for s in stages if s.state == "not run"), "nothing was launched")
        if len(outcome.answers) > 1 and state == "failed":
            why = f"rank {outcome.answers.index(answer)} of {len(outcome.answers)}: {why}"
        hang = self._hang(answer, outcome) if outcome.stacks else None
        return CaseResult(
            spec=spec,
            state=state,
            why=why,
            stages=stages,
            seconds=outcome.seconds,
            operators=tuple(dict.fromkeys(name for end in ends for name in end["operators"])),
            kernels=tuple(dict.fromkeys(name for end in ends for name in end["kernels"])),
            kernels_unknown=ends[0]["kernels_unknown"] if ends else "it did not end",
            empty=bool((answer.end or {}).get("empty")),
            peak_memory=max((end["peak_memory"] for end in ends), default=0),
            hang=hang,
            output=outcome.output if state == "failed" else "",
            notes=tuple(dict.fromkeys(note for end in ends for note in end["notes"])),
        )

    def _hang(self, answer: Answer, outcome: Outcome) -> Hang:
        """The worker is dead by now; whether its GPU came to rest is worth knowing before the next case."""
        gpu = outcome.gpu
        still = [g for g in self.gpus if busy(g)]
        if still:
            gpu += "\nafter the kill still busy: " + ", ".join(f"GPU {g.index} ({g.name})" for g in still)
        return Hang(stage=answer.stage, step=answer.step, stacks=outcome.stacks, gpu=gpu)

    def close(self) -> None:
        """Let the worker end."""
        if self._team is not None:
            self._team.leave()
            self._team = None

    def kill(self) -> None:
        """Take the worker away at once."""
        if self._team is not None:
            self._team.stop()
            self._team = None


def worst(answers: list[Answer]) -> Answer:
    """The rank whose answer counts: one that failed by itself, else one that died, one that never answered, others."""

    def badness(answer: Answer) -> int:
        if answer.end is not None:
            return 0 if answer.end["state"] == "failed" else 4 if answer.end["state"] == "passed" else 3
        return 1 if answer.died else 2

    return min(answers, key=badness)


def _stages(answer: Answer) -> tuple[StageResult, ...]:
    return tuple(
        StageResult(
            name=stage["name"],
            state=stage["state"],
            why=stage["why"],
            seconds=stage["seconds"],
            results=tuple(stage["results"]),
        )
        for stage in (answer.end or {}).get("stages", ())
    )


def _hello(facts: Mapping[str, Any]) -> Hello:
    return Hello(
        pid=int(facts.get("pid", 0)),
        facts=dict(facts),
        problem=str(facts["problem"]),
        operators=tuple(facts.get("operators", ())),
    )
