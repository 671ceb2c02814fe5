"""InfLLM-V2's pooling of attention scores over blocks of keys (from sgl-kernel 0.4.5 on)."""

from __future__ import annotations

import pytest

from sm120_smoke.case import EXACT, Launch, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.operators import of_some_versions
from sm120_smoke.references import attention as references


@case("sgl_kernel::infllm_v2_max_pooling_1d_varlen")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("heads", "lengths", "keys"), [(1, (3,), (40,)), (2, (17, 1, 130), (64, 33, 257)), (16, (5, 64), (1000, 129))]
)
def test_infllm_v2_max_pooling_1d_varlen(
    dtype: str, heads: int, lengths: tuple[int, ...], keys: tuple[int, ...]
) -> Launch:
    launch = of_some_versions("sgl_kernel::infllm_v2_max_pooling_1d_varlen")
    kernel, stride, padding, block, local, first = 5, 4, 1, 64, 2, 1
    total, width = sum(lengths), max(keys)
    count = (width + 2 * padding - kernel) // stride + 1
    x, out = tensors(dtype, (heads, total, width), (heads, total, count))
    ends = [[sum(values[:i]) for i in range(len(values) + 1)] for values in (lengths, keys)]
    bounds_q, bounds_k = (torch.tensor(values, dtype=torch.int32, device="cuda") for values in ends)
    cached = torch.tensor([100 * i for i in range(len(lengths))], dtype=torch.int32, device="cuda")
    sizes = (max(lengths), width, kernel, stride, padding, block, local, first, total)

    def run() -> object:
        launch(x, out, bounds_q, bounds_k, cached, *sizes)
        return out

    def reference() -> object:
        return references.pooled(
            x, lengths, keys, cached.tolist(), count, (kernel, stride, padding), block, local, first
        )

    return Launch(run=run, reference=reference, redraw=lambda seed: redraw(seed, x), tolerance=EXACT)
