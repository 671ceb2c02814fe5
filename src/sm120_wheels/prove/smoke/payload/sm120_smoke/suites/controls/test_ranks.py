"""Negative controls on two GPUs: a rank that does not arrive."""

from __future__ import annotations

import time

from sm120_smoke import ranks
from sm120_smoke.case import EXACT, Launch, Needs, case
from sm120_smoke.lazy import torch

TWO = Needs(gpus=2)
_LONG_S = 3600.0


@case(needs=TWO, deadline=20)
def test_one_rank_never_arrives() -> Launch:
    return _sum(absent=1)


@case(needs=TWO, deadline=60)
def test_good_after_one_rank_never_arrives() -> Launch:
    return _sum(absent=None)


def _sum(*, absent: int | None) -> Launch:
    here = ranks.here()
    group = here.group("nccl")
    x = torch.empty(4096, device="cuda")

    def draw(seed: int) -> None:
        x.fill_(float(seed))

    def run() -> object:
        if here.rank == absent:
            time.sleep(_LONG_S)
        out = x.clone()
        torch.distributed.all_reduce(out, group=group)
        return out

    return Launch(
        run=run,
        reference=lambda: x * here.world,  # every rank has the same number
        redraw=draw,
        tolerance=EXACT,
    )
