"""Cases of the host backend: what is right passes, what is wrong fails for its own reason."""

from __future__ import annotations

import importlib
import math
import os
import random
import time
import unittest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sm120_smoke import backend_host
from sm120_smoke.case import EXACT, Launch, Needs, NotRun, Tolerance, case


def operators() -> Any:
    """The package under test, which is there only where the worker runs."""
    return importlib.import_module("demo_ops")


def launch(
    operator: str,
    count: int = 8,
    *,
    reference: Callable[[], list[float]] | None = None,
    no_graph: str = "",
    empty: bool = False,
) -> Launch:
    values, out = [0.0] * count, [0.0] * count

    def run() -> list[float]:
        getattr(operators(), operator)(values, out)
        return out

    def redraw(seed: int) -> None:
        generator = random.Random(seed)
        values[:] = [generator.uniform(1, 2) for _ in values]

    expected = reference or (lambda: [2 * v for v in values])
    return Launch(run=run, reference=expected, redraw=redraw, tolerance=EXACT, no_graph=no_graph, empty=empty)


def call(operator: str) -> Launch:
    return Launch(
        run=lambda: getattr(operators(), operator)(), reference=lambda: None, redraw=lambda seed: None, tolerance=EXACT
    )


@case("demo::double")
@pytest.mark.parametrize("count", [1, 8])
def test_right(count: int) -> Launch:
    return launch("double", count)


@case("demo::double")
def test_no_graph() -> Launch:
    return launch("double", no_graph="it synchronises")


@case("demo::wrong")
def test_wrong_numbers() -> Launch:
    return launch("wrong")


@case("demo::zeros")
def test_zeros() -> Launch:
    return launch("zeros")


@case("demo::double")
def test_zeros_within_tolerance() -> Launch:
    values = [0.0] * 4

    def run() -> list[float]:
        out = [0.0] * 4
        operators().double([0.0] * 4, out)
        return out

    def redraw(seed: int) -> None:
        values[:] = [1e-9] * 4

    return Launch(
        run=run, reference=lambda: values, redraw=redraw, tolerance=Tolerance(absolute=1.0, source="far too much")
    )


@case("demo::double")
def test_reference_of_nan() -> Launch:
    return launch("double", reference=lambda: [math.nan] * 8)


@case("demo::lazy")
def test_never_written() -> Launch:
    return launch("lazy")


@case("demo::once")
def test_fails_in_a_graph_only() -> Launch:
    return launch("once")


@case("demo::double")
def test_not_run_in_a_graph() -> Launch:
    made = launch("double")

    def run() -> Any:
        if backend_host.capturing:
            raise NotRun("not in a graph with this driver")
        return made.run()

    return replace(made, run=run)


@case("demo::double")
def test_wrong_shape() -> Launch:
    return launch("double", reference=lambda: [1.0] * 7)


@case("demo::double")
def test_no_result() -> Launch:
    return Launch(run=lambda: None, reference=lambda: None, redraw=lambda seed: None, tolerance=EXACT)


@case("demo::double_of_nothing")
def test_nothing_to_do() -> Launch:
    return launch("double_of_nothing", 0, empty=True)


@case("demo::double")
def test_nothing_to_compare() -> Launch:
    return launch("double", 0)


@case("demo::refuses_nothing")
def test_something_to_do() -> Launch:
    return launch("refuses_nothing")


@case("demo::refuses_nothing")
def test_refuses_to_do_nothing() -> Launch:
    return launch("refuses_nothing", 0, empty=True)


@case("demo::untested", "demo::double")
def test_never_reaches_its_operator() -> Launch:
    return launch("double")


@case("demo::sleeps", deadline=3)
def test_hangs_in_python() -> Launch:
    return call("sleeps")


@case("demo::sleeps_in_c", deadline=3)
def test_hangs_in_native_code() -> Launch:
    return call("sleeps_in_c")


@case("demo::double", "demo::sleeps", deadline=3)
def test_hangs_at_the_second_launch() -> Launch:
    def run() -> None:
        operators().double([1.0], [0.0])
        operators().sleeps()

    return Launch(run=run, reference=lambda: None, redraw=lambda seed: None, tolerance=EXACT)


@case("demo::double", deadline=3)
def test_hangs_once() -> Launch:
    mark = Path("it-hung")  # in the folder of the run, which the next worker shares

    def run() -> list[float]:
        if not mark.exists():
            mark.touch()
            time.sleep(3600)
        return [2.0]

    return Launch(run=run, reference=lambda: [2.0], redraw=lambda seed: None, tolerance=EXACT)


@case("demo::aborts")
def test_aborts() -> Launch:
    return call("aborts")


@case("demo::segfaults")
def test_segfaults() -> Launch:
    return call("segfaults")


@case("demo::compiles")
def test_compiles_at_run_time() -> Launch:
    return call("compiles")


@case("demo::compiles_and_hides_it")
def test_compiles_and_hides_it() -> Launch:
    return call("compiles_and_hides_it")


@case("demo::double")
def test_skips() -> Launch:
    pytest.skip("no such module")


@case("demo::double")
def test_skips_otherwise() -> Launch:
    raise unittest.SkipTest("out of memory")


@case("demo::double")
def test_out_of_memory() -> Launch:
    raise MemoryError("cannot allocate 1 TB")


@case("demo::double")
def test_missing_module() -> Launch:
    importlib.import_module("no_such_module_anywhere")
    return launch("double")


@case("demo::double")
def test_leaves() -> Launch:
    raise SystemExit(0)


@case("demo::double")
def test_rightly_not_run() -> Launch:
    raise NotRun("this package was built without it")


@case("demo::double", needs=Needs(gpus=99, why="a big machine"))
def test_unmet_need() -> Launch:
    return launch("double")


@case("demo::double", needs=Needs(gpus=2))
def test_two_ranks_meet() -> Launch:
    from sm120_smoke import ranks

    here = ranks.here()
    assert here.exchange(here.rank) == [0, 1]
    return launch("double")


@case("demo::double", needs=Needs(gpus=2), deadline=4)
def test_one_rank_does_not_arrive() -> Launch:
    from sm120_smoke import ranks

    here = ranks.here()
    if here.rank == 1:
        time.sleep(3600)
    here.barrier()
    return launch("double")


@case("demo::double", needs=Needs(gpus=2), deadline=20)
def test_one_rank_fails() -> Launch:
    from sm120_smoke import ranks

    here = ranks.here()
    if here.rank == 1:
        raise ValueError("rank 1 has no such thing")
    here.barrier()
    return launch("double")


@case("demo::double", needs=Needs(gpus=2), deadline=6)
def test_works_with_p2p_off() -> Launch:
    if os.environ.get("SM120_SMOKE_P2P") != "off":
        time.sleep(3600)
    return launch("double")


@case(needs=Needs(gpus=2), deadline=20)
def test_wrong_on_two_with_p2p() -> Launch:
    from sm120_smoke import ranks

    wrong = ranks.here().rank == 1 and os.environ.get("SM120_SMOKE_P2P") != "off"
    return launch("wrong" if wrong else "double")


@case("demo::double")
def test_right_after_all_of_that() -> Launch:
    return launch("double")
