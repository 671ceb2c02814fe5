"""Collectives of torch over NCCL, eagerly and in a graph: what must work before any wheel is blamed.

Inputs are small whole numbers, so sums are exact in every dtype and in any order.
"""

from __future__ import annotations

from typing import Any

from sm120_smoke import ranks
from sm120_smoke.case import EXACT, Launch, Needs, case
from sm120_smoke.draw import dtype_of
from sm120_smoke.lazy import torch

TWO = Needs(gpus=2)
DTYPES = ("float32", "float16", "bfloat16", "int32")
COUNTS = (1, 4099, 1 << 20)


def _drawn(seed: int, rank: int, dtype: str, count: int) -> Any:
    """Whole numbers from -8 to 8, the same on every rank that asks for them."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    return torch.randint(-8, 9, (count,), generator=generator).to(dtype_of(dtype))


class _Inputs:
    """One tensor for each dtype and count, and what every rank has in its own."""

    def __init__(self) -> None:
        self.here = ranks.here()
        self.keys = [(dtype, count) for dtype in DTYPES for count in COUNTS]
        self.mine = [torch.empty(count, dtype=dtype_of(dtype), device="cuda") for dtype, count in self.keys]
        self.all: list[list[Any]] = []

    def redraw(self, seed: int) -> None:
        self.all = [[_drawn(seed, r, dtype, n).cuda() for r in range(self.here.world)] for dtype, n in self.keys]
        for tensor, every in zip(self.mine, self.all, strict=True):
            tensor.copy_(every[self.here.rank])


@case(needs=TWO, deadline=90)
def test_all_reduce() -> Launch:
    inputs = _Inputs()
    group = inputs.here.group("nccl")
    outs = [torch.empty_like(tensor) for tensor in inputs.mine]

    def run() -> list[Any]:
        for out, tensor in zip(outs, inputs.mine, strict=True):
            out.copy_(tensor)
            torch.distributed.all_reduce(out, group=group)
        return outs

    return Launch(
        run=run,
        reference=lambda: [sum(every[1:], every[0]) for every in inputs.all],
        redraw=inputs.redraw,
        tolerance=EXACT,
    )


@case(needs=TWO, deadline=90)
def test_all_gather_and_reduce_scatter() -> Launch:
    inputs = _Inputs()
    here, group = inputs.here, inputs.here.group("nccl")
    gathered = [torch.empty(here.world * t.numel(), dtype=t.dtype, device="cuda") for t in inputs.mine]
    scattered = [torch.empty_like(t) for t in inputs.mine]

    def run() -> list[Any]:
        for out, back, tensor in zip(gathered, scattered, inputs.mine, strict=True):
            torch.distributed.all_gather_into_tensor(out, tensor, group=group)
            torch.distributed.reduce_scatter_tensor(back, out, group=group)
        return [*gathered, *scattered]

    def reference() -> list[Any]:
        # Every rank gives the same gathered tensor to the second step, so each gets its own part times their number.
        return [*(torch.cat(every) for every in inputs.all), *(every[here.rank] * here.world for every in inputs.all)]

    return Launch(run=run, reference=reference, redraw=inputs.redraw, tolerance=EXACT)
