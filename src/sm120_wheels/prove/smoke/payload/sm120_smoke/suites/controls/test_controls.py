"""Negative controls: the faulty operators of the package sm120-controls, with a good one after each.

Only the good ones may pass. Which outcome and which words each must have is data: ``tests/gpu/controls.toml``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Needs, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.lazy import torch

#: Odd, and several blocks: the last one is not full.
COUNT = 10_007

FLAWS = (
    # wrong results
    "returns_zeros",
    "returns_nan",
    "wrong_in_one_element",
    "forgets_the_tail",
    "launches_nothing",
    "refuses",
    "returns_no_result",
    "returns_another_shape",
    # good results by other means
    "starts_nvcc",
    "starts_a_program",
    "compiles_with_nvrtc",
    "compiles_with_nvrtc_again",
    "uses_the_network",
    "never_reaches_its_operator",
    # excuses
    "asks_to_be_skipped",
    "runs_out_of_memory",
    # right eagerly and wrong in a graph
    "keeps_a_host_value",
    "synchronises",
    "allocates",
    "ignores_the_stream",
    # the process or its context is lost
    "writes_out_of_bounds",
    "traps",
    "fails_an_assertion",
    "leaves_an_error_behind",
    "aborts_the_process",
)
#: Right in every way that can be seen from outside; compute-sanitizer sees it.
HIDDEN = ("writes_just_out_of_bounds",)
#: Those whose operator is called otherwise.
OPERATORS = {
    "refuses": "is_fussy",
    "returns_no_result": "good",
    "returns_another_shape": "good",
    "never_reaches_its_operator": "good",
    "asks_to_be_skipped": "good",
    "runs_out_of_memory": "good",
}


def _with_good_ones(flaws: tuple[str, ...]) -> dict[str, Any]:
    """Each flaw and a good case after it, with names that say so."""
    pairs = [(flaw, OPERATORS.get(flaw, flaw)) for flaw in flaws]
    values = [value for pair in pairs for value in (pair, ("good", "good"))]
    names = [name for flaw in flaws for name in (flaw, f"good-after-{flaw}")]
    return {"argnames": ("control", "operator"), "argvalues": values, "ids": names}


@case("sm120_controls::{operator}", deadline=20)
@pytest.mark.parametrize(**_with_good_ones(FLAWS))
def test_control(control: str, operator: str) -> Launch:
    return _launch(control, operator)


@case("sm120_controls::{operator}", deadline=20)
@pytest.mark.parametrize(**_with_good_ones(HIDDEN))
def test_hidden(control: str, operator: str) -> Launch:
    return _launch(control, operator)


@case("sm120_controls::never_returns", deadline=5)
def test_never_returns() -> Launch:
    return _launch("never_returns", "never_returns")


@case("sm120_controls::good")
def test_good_after_never_returns() -> Launch:
    return _launch("good", "good")


@case("sm120_controls::good", deadline=5)
def test_hangs_in_a_graph() -> Launch:
    return _launch("hangs_in_a_graph", "good")


@case("sm120_controls::good")
def test_good_after_hangs_in_a_graph() -> Launch:
    return _launch("good", "good")


@case("sm120_controls::waits_on_the_host", deadline=5)
def test_waits_on_the_host() -> Launch:
    return _launch("waits_on_the_host", "waits_on_the_host")


@case("sm120_controls::good")
def test_good_after_waits_on_the_host() -> Launch:
    return _launch("good", "good")


@case("sm120_controls::good", needs=Needs(capability=((1, 0),), why="no GPU of today has it"))
def test_other_gpu() -> Launch:
    return _launch("good", "good")


def _never() -> Any:
    return torch.ops.sm120_controls.never_returns.default


def _launch(control: str, operator: str) -> Launch:
    (x,) = tensors("float32", (COUNT,))
    function = getattr(torch.ops.sm120_controls, operator).default
    runs: dict[str, Callable[[], Any]] = {
        "returns_no_result": lambda: None if function(x) is not None else x,
        "returns_another_shape": lambda: function(x)[:-1],
        "never_reaches_its_operator": lambda: 2 * x + 1,
        "hangs_in_a_graph": lambda: (_never() if torch.cuda.is_current_stream_capturing() else function)(x),
        "runs_out_of_memory": lambda: function(torch.empty(1 << 50, device="cuda")),
    }
    if control == "asks_to_be_skipped":
        pytest.skip("this machine does not suit me")
    if control == "keeps_a_host_value":
        return _with_host_value(x, function)
    return Launch(
        run=runs.get(control, lambda: function(x)),
        reference=lambda: 2 * x + 1,
        redraw=lambda seed: redraw(seed, x),
        tolerance=EXACT,
    )


def _with_host_value(x: Any, function: Any) -> Launch:
    factor = torch.ones(1)

    def draw(seed: int) -> None:
        redraw(seed, x)
        factor.fill_(float(2**seed))  # a power of two: the product is exact

    return Launch(
        run=lambda: function(x, factor),
        reference=lambda: x * float(factor) + 1,
        redraw=draw,
        tolerance=EXACT,
    )
