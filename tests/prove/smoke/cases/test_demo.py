"""Cases of the host backend: what is right passes, what is wrong fails for its own reason."""

from __future__ import annotations

import math
import random
import time
import unittest

import pytest
from sm120_smoke.case import EXACT, Launch, Needs, NotRun, Tolerance, case


def launch(operator, count=8, *, reference=None, **more):
    import demo_ops

    values, out = [0.0] * count, [0.0] * count

    def run():
        getattr(demo_ops, operator)(values, out)
        return out

    def redraw(seed):
        generator = random.Random(seed)
        values[:] = [generator.uniform(1, 2) for _ in values]

    return Launch(
        run=run, reference=reference or (lambda: [2 * v for v in values]), redraw=redraw, tolerance=EXACT, **more
    )


def call(operator):
    import demo_ops

    return Launch(
        run=lambda: getattr(demo_ops, operator)(), reference=lambda: None, redraw=lambda seed: None, tolerance=EXACT
    )


@case("demo::double")
@pytest.mark.parametrize("count", [1, 8, (3)])
def test_right(count):
    return launch("double", count)


@case("demo::double")
def test_no_graph():
    return launch("double", no_graph="it synchronises")


@case("demo::wrong")
def test_wrong_numbers():
    return launch("wrong")


@case("demo::zeros")
def test_zeros():
    return launch("zeros")


@case("demo::double")
def test_zeros_within_tolerance():
    import demo_ops

    values = [0.0] * 4

    def run():
        out = [0.0] * 4
        demo_ops.double([0.0] * 4, out)
        return out

    def redraw(seed):
        values[:] = [1e-9] * 4

    return Launch(
        run=run, reference=lambda: values, redraw=redraw, tolerance=Tolerance(absolute=1.0, source="far too much")
    )


@case("demo::double")
def test_reference_of_nan():
    return launch("double", reference=lambda: [math.nan] * 8)


@case("demo::lazy")
def test_never_written():
    return launch("lazy")


@case("demo::once")
def test_fails_in_a_graph_only():
    return launch("once")


@case("demo::double")
def test_wrong_shape():
    return launch("double", reference=lambda: [1.0] * 7)


@case("demo::double")
def test_no_result():
    return Launch(run=lambda: None, reference=lambda: None, redraw=lambda seed: None, tolerance=EXACT)


@case("demo::untested", "demo::double")
def test_never_reaches_its_operator():
    return launch("double")


@case("demo::sleeps", deadline=1.5)
def test_hangs_in_python():
    return call("sleeps")


@case("demo::sleeps_in_c", deadline=1.5)
def test_hangs_in_native_code():
    return call("sleeps_in_c")


@case("demo::aborts")
def test_aborts():
    return call("aborts")


@case("demo::segfaults")
def test_segfaults():
    return call("segfaults")


@case("demo::compiles")
def test_compiles_at_run_time():
    return call("compiles")


@case("demo::compiles_and_hides_it")
def test_compiles_and_hides_it():
    return call("compiles_and_hides_it")


@case("demo::double")
def test_skips():
    pytest.skip("no such module")


@case("demo::double")
def test_skips_otherwise():
    raise unittest.SkipTest("out of memory")


@case("demo::double")
def test_out_of_memory():
    raise MemoryError("cannot allocate 1 TB")


@case("demo::double")
def test_missing_module():
    import no_such_module_anywhere  # noqa: F401


@case("demo::double")
def test_leaves():
    raise SystemExit(0)


@case("demo::double")
def test_rightly_not_run():
    raise NotRun("this package was built without it")


@case("demo::double", needs=Needs(gpus=99, why="a big machine"))
def test_unmet_need():
    return launch("double")


@case("demo::double", needs=Needs(gpus=2))
def test_two_ranks_meet():
    from sm120_smoke import ranks

    here = ranks.here()
    assert here.exchange(here.rank) == [0, 1]
    return launch("double")


@case("demo::double", needs=Needs(gpus=2), deadline=3)
def test_one_rank_does_not_arrive():
    from sm120_smoke import ranks

    here = ranks.here()
    if here.rank == 1:
        time.sleep(3600)
    here.barrier()
    return launch("double")


@case("demo::double", needs=Needs(gpus=2), deadline=20)
def test_one_rank_fails():
    from sm120_smoke import ranks

    here = ranks.here()
    if here.rank == 1:
        raise ValueError("rank 1 has no such thing")
    here.barrier()
    return launch("double")


@case("demo::double", needs=Needs(gpus=2), deadline=2)
def test_works_with_p2p_off():
    import os

    if os.environ.get("SM120_SMOKE_P2P") != "off":
        time.sleep(3600)
    return launch("double")


@case("demo::double")
def test_right_after_all_of_that():
    return launch("double")
