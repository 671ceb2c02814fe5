"""One case from its first stage to its last, on any backend. Says what it is about to do before it does it.

The order is that of :mod:`sm120_smoke.case`. A stage that cannot be tried because an earlier one failed is "not run".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sm120_smoke.backend import Backend, NoGraphsError
from sm120_smoke.case import Launch, NotRun, Tolerance
from sm120_smoke.compare import problem
from sm120_smoke.guard import Guard

#: Called with the stage and what it does next: a watchdog shows the last of them when nothing comes any more.
Tell = Callable[[str, str], None]


@dataclass(kw_only=True)
class Stage:
    """What became of one stage."""

    name: str
    state: str = "passed"
    """``passed``, ``failed`` or ``not run``."""
    why: str = ""
    seconds: float = 0.0
    results: list[dict[str, Any]] = field(default_factory=list)
    """For each result how near it came to its tolerance, over all comparisons of the stage."""


@dataclass(kw_only=True)
class CaseOutcome:
    """What became of a case, before anyone asks whether its operators were reached."""

    stages: list[Stage]
    operators: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    kernels_unknown: str = "not reached"
    broken: str = ""
    """Why nothing can be launched in this process any more; empty where it can."""
    empty: bool = False
    """Whether the case gives its operators nothing to do (:attr:`Launch.empty`)."""

    @property
    def state(self) -> str:
        states = [stage.state for stage in self.stages]
        if "failed" in states:
            return "failed"
        return "passed" if any(s.name == "eager" and s.state == "passed" for s in self.stages) else "not run"


class _Failed(Exception):  # noqa: N818 - the result of a comparison
    """A comparison that failed."""


class Run:
    """Runs one case."""

    def __init__(self, backend: Backend, guard: Guard, tell: Tell, *, with_trace: bool) -> None:
        self._backend, self._guard, self._tell, self._with_trace = backend, guard, tell, with_trace

    def run(self, make: Callable[[], Any], operators: Sequence[str]) -> CaseOutcome:
        """``make`` calls the case's function. Every exception of the case becomes the outcome of a stage."""
        outcome = CaseOutcome(stages=[])
        launch: list[Launch] = []
        with self._backend.restored():
            prepared = self._stage(outcome, "prepare", lambda stage: launch.append(self._made(make)))
            if prepared.state == "passed":
                outcome.stages.pop()  # nothing to say about it
                outcome.empty = launch[0].empty
                self._launches(outcome, launch[0], operators)
            launch.clear()
        if self._guard.blind and not outcome.broken:
            outcome.broken = "NVRTC is loaded: only a new process sees it compile"
        return outcome

    def _made(self, make: Callable[[], Any]) -> Launch:
        self._tell("prepare", "make the inputs")
        launch = make()
        if not isinstance(launch, Launch):
            raise TypeError(f"a case must return a Launch, and this one returned {type(launch).__name__}")
        self._backend.synchronise()
        return launch

    def _launches(self, outcome: CaseOutcome, launch: Launch, operators: Sequence[str]) -> None:
        eager = self._stage(outcome, "eager", lambda stage: self._eager(stage, launch))
        if eager.state == "not run":
            return
        if launch.no_graph:
            outcome.stages.append(Stage(name="graph", state="not run", why=launch.no_graph))
        elif eager.state == "failed" or outcome.broken:
            outcome.stages.append(Stage(name="graph", state="not run", why="it failed eagerly"))
        else:
            self._stage(outcome, "graph", lambda stage: self._graph(stage, launch))
        if outcome.broken:
            outcome.kernels_unknown = outcome.broken
        elif self._with_trace and eager.state == "passed":
            self._stage(outcome, "trace", lambda stage: self._trace(outcome, launch, operators))

    def _stage(self, outcome: CaseOutcome, name: str, body: Callable[[Stage], None]) -> Stage:
        stage = Stage(name=name)
        outcome.stages.append(stage)
        began = time.perf_counter()
        self._guard.begin()
        try:
            body(stage)
        except NotRun as reason:
            stage.state, stage.why = "not run", str(reason) or "the case gave no reason"
        except NoGraphsError as reason:
            stage.state, stage.why = "not run", str(reason)
        except _Failed as wrong:
            stage.state, stage.why = "failed", str(wrong)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # noqa: BLE001 - whatever a library raises, SystemExit too, is this case's outcome
            stage.state, stage.why = "failed", describe(exc)
            # After a capture that failed, streams and allocator may be left in it: the next case gets a new process.
            outcome.broken = self._health() or ("a capture failed" if name == "graph" else "")
        attempts = self._guard.end()
        if attempts:
            stage.state = "failed"
            stage.why = "; ".join([*dict.fromkeys(attempts), *([stage.why] if stage.why else [])])
        stage.seconds = time.perf_counter() - began
        return stage

    def _health(self) -> str:
        try:
            self._backend.synchronise()
        except Exception as exc:  # noqa: BLE001 - any error of a synchronise means that the context is lost
            return f"the GPU's context is lost: {_first_line(exc)}"
        return ""

    def _eager(self, stage: Stage, launch: Launch) -> None:
        results = self._once(stage, launch, seed=1)
        # Results that a run allocates anew are poisoned as well: their memory is what the next run is likely to get.
        self._backend.poison(results)
        results.clear()
        self._once(stage, launch, seed=2)

    def _once(self, stage: Stage, launch: Launch, *, seed: int) -> list[Any]:
        expected = self._drawn(stage.name, launch, seed)
        self._tell(stage.name, "run")
        results = self._backend.flatten(launch.run())
        self._tell(stage.name, "wait for the GPU")
        self._backend.synchronise()
        self._tell(stage.name, "compare")
        self._compare(stage, launch, results, expected)
        return results

    def _drawn(self, stage: str, launch: Launch, seed: int) -> list[Any]:
        """New inputs, and what is to come of them."""
        with self._guard.reference():
            self._tell(stage, f"draw inputs from seed {seed}")
            launch.redraw(seed)
            self._tell(stage, "compute the reference")
            expected = self._backend.flatten(launch.reference())
            self._backend.synchronise()
        return expected

    def _graph(self, stage: Stage, launch: Launch) -> None:
        self._tell("graph", "draw inputs from seed 3")
        launch.redraw(3)
        self._backend.synchronise()
        self._tell("graph", "warm up and capture")
        replay, results = self._backend.capture(launch.run)
        for seed in (4, 5):
            self._backend.poison(results)
            expected = self._drawn("graph", launch, seed)
            self._tell("graph", "replay")
            replay()
            self._tell("graph", "wait for the GPU")
            self._backend.synchronise()
            self._compare(stage, launch, results, expected)

    def _trace(self, outcome: CaseOutcome, launch: Launch, operators: Sequence[str]) -> None:
        self._tell("trace", "draw inputs from seed 6")
        launch.redraw(6)
        self._backend.synchronise()
        self._tell("trace", "run and see what is reached")
        trace = self._backend.trace(launch.run)
        outcome.operators, outcome.kernels = trace.operators, trace.kernels
        outcome.kernels_unknown = trace.kernels_unknown
        missing = [name for name in operators if name not in trace.operators]
        if missing:
            raise _Failed(f"it never reached {', '.join(missing)}")

    def _compare(self, stage: Stage, launch: Launch, results: Sequence[Any], expected: Sequence[Any]) -> None:
        if not results:
            raise _Failed("the case returns no result: there is nothing to check")
        if len(results) != len(expected):
            raise _Failed(f"the case has {len(results)} results and its reference {len(expected)}")
        tolerances = _for_each(launch.tolerance, len(results))
        measured = [
            self._backend.measure(result, wanted, tolerance)
            for result, wanted, tolerance in zip(results, expected, tolerances, strict=True)
        ]
        stage.results += [found.facts() for found in measured]
        for index, (found, tolerance) in enumerate(zip(measured, tolerances, strict=True)):
            name = "the result" if len(measured) == 1 else f"result {index + 1} of {len(measured)}"
            if why := problem(found, tolerance, name=name):
                raise _Failed(why)
        filled = [m for m in measured if m.elements]
        if not filled and not launch.empty:
            raise _Failed("no result has an element: there is nothing to check")
        if filled and not (launch.may_be_zero or launch.empty) and all(m.zero for m in filled):
            raise _Failed("all results are zero")


def _for_each(tolerance: Tolerance | Sequence[Tolerance], count: int) -> list[Tolerance]:
    if isinstance(tolerance, Tolerance):
        return [tolerance] * count
    if len(tolerance) != count:
        raise _Failed(f"the case has {count} results and {len(tolerance)} tolerances")
    return list(tolerance)


def describe(exc: BaseException) -> str:
    """An exception in a line; a skip, by whatever name, is no way out."""
    if type(exc).__name__ in ("Skipped", "SkipTest", "SkipAttempt"):
        return f"it asked to be skipped ({exc}): a case that cannot be run here must say so by NotRun"
    return f"{type(exc).__name__}: {_first_line(exc)}"


def _first_line(exc: BaseException) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return " ".join(lines[:2])[:600] if lines else "no message"
