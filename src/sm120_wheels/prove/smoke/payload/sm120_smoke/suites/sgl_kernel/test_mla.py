"""CUTLASS' latent attention, written for compute capability 10.0, and the size of its workspace."""

from __future__ import annotations

import pytest

from sm120_smoke.case import EXACT, Launch, Needs, NotRun, case
from sm120_smoke.lazy import torch


@case(
    "sgl_kernel::cutlass_mla_get_workspace_size",
    needs=Needs(capability=((10, 0),), why="the size is for cutlass_mla_decode, which takes 10.0 only"),
)
@pytest.mark.parametrize(("length", "batch", "splits"), [(128, 1, 1), (4096, 7, 4)])
def test_cutlass_mla_get_workspace_size(length: int, batch: int, splits: int) -> Launch:
    """Computed on the host: for each split of each of 128 heads 512 float32 sums and a log-sum-exp."""

    def run() -> object:
        return torch.ops.sgl_kernel.cutlass_mla_get_workspace_size.default(length, batch, 1, splits)

    return Launch(
        run=run,
        reference=lambda: 128 * (512 + 1) * 4 * splits * batch,
        redraw=lambda seed: None,
        tolerance=EXACT,
        no_graph="it launches nothing",
    )


@case(
    "sgl_kernel::cutlass_mla_decode",
    needs=Needs(capability=((10, 0),), why="the operator takes compute capability 10.0 only"),
)
def test_cutlass_mla_decode() -> Launch:
    raise NotRun("no case is written for compute capability 10.0: nobody here has such a GPU")
