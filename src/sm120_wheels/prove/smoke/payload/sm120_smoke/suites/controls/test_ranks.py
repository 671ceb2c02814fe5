"""Negative controls on two GPUs: a rank that does not arrive, one that is wrong, and a host whose P2P does not work.

Whether P2P works is the machine's; here the case makes it look broken, and the harness has to find out.
"""

from __future__ import annotations

import os
import time

from sm120_smoke import ranks
from sm120_smoke.case import EXACT, Launch, Needs, case
from sm120_smoke.lazy import torch

TWO = Needs(gpus=2)
_LONG_S = 3600.0


@case(needs=TWO, deadline=20)
def test_one_rank_never_arrives() -> Launch:
    return _sum(late=True)


@case(needs=TWO, deadline=60)
def test_good_after_one_rank_never_arrives() -> Launch:
    return _sum()


@case(needs=TWO, deadline=20)
def test_hangs_by_p2p() -> Launch:
    return _sum(late=os.environ.get("NCCL_P2P_DISABLE") != "1")


@case(needs=TWO, deadline=60)
def test_good_after_hangs_by_p2p() -> Launch:
    return _sum()


@case(needs=TWO, deadline=60)
def test_wrong_on_the_second_gpu() -> Launch:
    return _sum(wrong=True)


def _sum(*, late: bool = False, wrong: bool = False) -> Launch:
    """All-reduce, and what the second rank does to it."""
    here = ranks.here()
    group = here.group("nccl")
    x = torch.empty(4096, device="cuda")

    def draw(seed: int) -> None:
        x.fill_(float(seed))

    def run() -> object:
        out = x.clone()
        if late and here.rank == 1:
            time.sleep(_LONG_S)
        torch.distributed.all_reduce(out, group=group)
        if wrong and here.rank == 1:
            out[:1].add_(1)
        return out

    return Launch(
        run=run,
        reference=lambda: x * here.world,  # every rank has the same number
        redraw=draw,
        tolerance=EXACT,
    )
