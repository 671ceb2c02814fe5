"""Runs the cases on the current GPU: once as they are, once captured into a CUDA graph and replayed on other inputs.

Whether anything may be launched at all is decided before (:func:`report.why_nothing_runs`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .cases import Case, Inputs, Shape
from .report import NOT_ON_TARGET, CaseReport, Gpu, Measured, Outcome, judge, worst_of

_BROKEN = "not tried: an earlier case left the GPU's context unusable"


def current_gpu() -> Gpu | None:
    """The GPU that the cases would run on; ``None`` where torch sees none."""
    if not torch.cuda.is_available():
        return None
    return Gpu(name=torch.cuda.get_device_name(), capability=torch.cuda.get_device_capability())


def not_run(cases: Sequence[Case], why: str) -> list[CaseReport]:
    outcome = Outcome(state="not run", why=why)
    return [
        CaseReport(name=case.name, feature=case.feature, tolerance=case.tolerance, eager=outcome, graph=outcome)
        for case in cases
    ]


def run_cases(cases: Sequence[Case]) -> Iterator[CaseReport]:
    """Yields a report as each case ends. After a fault that the context does not survive, the rest is not run."""
    for index, case in enumerate(cases):
        report = _run_case(case)
        yield report
        if not _context_works():
            yield from not_run(cases[index + 1 :], _BROKEN)
            return


Mode = Callable[[Case, Shape, Any, Callable[[], Inputs]], Outcome]
"""A way to run a case on one shape: gets the case's state and a maker of inputs that are new at each call."""


def _run_case(case: Case) -> CaseReport:
    notes: list[str] = []
    seeds = itertools.count(1)
    eager = _over_shapes(case, _eager, seeds, notes)
    # After a sticky fault a capture could only fail for the same reason.
    graph = _over_shapes(case, _graph, seeds, notes) if _context_works() else Outcome(state="not run", why=_BROKEN)
    return CaseReport(
        name=case.name,
        feature=case.feature,
        tolerance=case.tolerance,
        eager=eager,
        graph=graph,
        note=notes[0] if notes else "",
    )


def _over_shapes(case: Case, mode: Mode, seeds: Iterator[int], notes: list[str]) -> Outcome:
    device = torch.cuda.current_device()

    def attempt(shape: Shape) -> Outcome:
        state = case.state(shape, device)
        notes.append(case.note(state, device))
        return mode(case, shape, state, lambda: case.make(torch.Generator().manual_seed(next(seeds)), shape))

    return worst_of(_guarded(functools.partial(attempt, shape)) for shape in case.shapes)


def _guarded(run: Callable[[], Outcome]) -> Outcome:
    try:
        return run()
    except NotImplementedError as error:
        text = str(error).splitlines()[0]
        if NOT_ON_TARGET not in text:
            return Outcome(state="failed", why=text)
        return Outcome(state="not run", why=text[text.index(NOT_ON_TARGET) :])
    except (RuntimeError, ValueError, TypeError) as error:  # what torch raises for a fault or a refused argument
        return Outcome(state="failed", why=f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _eager(case: Case, shape: Shape, state: Any, fresh: Callable[[], Inputs]) -> Outcome:
    inputs = fresh()
    result = case.op({name: x.cuda() for name, x in inputs.items()}, state)
    torch.cuda.synchronize()
    return _compare(case, shape, inputs, result)


def _graph(case: Case, shape: Shape, state: Any, fresh: Callable[[], Inputs]) -> Outcome:
    """Captures on one set of inputs, then replays on another put into the same memory, over a poisoned result."""
    static = {name: x.cuda() for name, x in fresh().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        case.op(static, state)  # whatever is set up at a first call must not be captured
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = case.op(static, state)
    inputs = fresh()
    for name, x in inputs.items():
        static[name].copy_(x)
    result.view(torch.uint8).fill_(0xFF)  # NaN in each of the float formats
    graph.replay()
    torch.cuda.synchronize()
    return _compare(case, shape, inputs, result)


def _compare(case: Case, shape: Shape, inputs: Inputs, result: Tensor) -> Outcome:
    actual, expected = case.decode(result.cpu()), case.reference(inputs)
    outcome = judge(measure(actual, expected, case.allowed(inputs, expected)))
    if outcome.state == "failed":
        return Outcome(state="failed", why=f"{outcome.why} (shape {'x'.join(map(str, shape))})", worst=outcome.worst)
    return outcome


def measure(actual: Tensor, expected: Tensor, allowed: Tensor) -> Measured:
    """Compares in float64. No difference is 0 of what is allowed, even where nothing is."""
    same_shape = actual.shape == expected.shape
    difference = (actual - expected).abs() if same_shape else torch.full_like(expected, math.inf)
    share = torch.where(difference == 0, torch.zeros_like(difference), difference / allowed)
    return Measured(
        shape=tuple(actual.shape),
        expected_shape=tuple(expected.shape),
        not_finite=int((~torch.isfinite(actual)).sum()),
        all_zero=bool((actual == 0).all() and (expected != 0).any()),
        worst=float(share.max()) if share.numel() else math.inf,
    )


def _context_works() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
