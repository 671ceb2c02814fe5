"""QServe's products of 4-bit weights and 8-bit activations, weights scaled by channel or by group too."""

from __future__ import annotations

import pytest

from sm120_smoke.case import Launch, Tolerance, case
from sm120_smoke.draw import integers, redraw_integers, redraw_uniform, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import qserve as references
from sm120_smoke.tolerance import UNIT

SIZES = [(1, 128, 512), (33, 512, 512), (128, 256, 1024), (513, 128, 512)]
"""Rows, columns, depth: each range of rows has a tile of its own."""


@case("sgl_kernel::qserve_w4a8_per_chn_gemm")
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_qserve_w4a8_per_chn_gemm(m: int, n: int, k: int) -> Launch:
    x, weights, packed, zeros = (
        integers((m, k), "int8"),
        integers((n, k)),
        integers((n, k // 2), "int8"),
        integers((n,)),
    )
    row_scales, column_scales, scaled_zeros = tensors("float16", (m,), (n,), (n,))
    sums, out = tensors("float16", (m,), (m, n))

    def run() -> object:
        torch.ops.sgl_kernel.qserve_w4a8_per_chn_gemm.default(
            x, packed, column_scales, row_scales, scaled_zeros, sums, out
        )
        return out

    def fill(seed: int) -> None:
        redraw_integers(seed, -127, 128, x)
        redraw_integers(seed + 100, 0, 16, weights, zeros)
        packed.copy_(references.pack(weights))
        redraw_uniform(seed + 200, 0.0005, 0.001, row_scales)
        redraw_uniform(seed + 300, 0.02, 0.04, column_scales)
        scaled_zeros.copy_(zeros.half() * column_scales)
        sums.copy_((x.float().sum(dim=-1) * row_scales.float()).half())

    # The product without zeros and what is taken off are both about 73 sqrt(k) 0.00075 7.5 0.03.
    size = 73 * k**0.5 * 0.00075 * 7.5 * 0.03
    return Launch(
        run=run,
        reference=lambda: (
            (x.double() @ (weights - zeros[:, None]).double().t())
            * row_scales.double()[:, None]
            * column_scales.double()
        ),
        redraw=fill,
        tolerance=Tolerance(
            relative=2 * UNIT["float16"],
            absolute=6 * UNIT["float16"] * 4 * size,
            source="zeros times scales, sums of rows and their product are rounded to half; terms of 4 times the usual",
        ),
    )


@case("sgl_kernel::qserve_w4a8_per_group_gemm")
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_qserve_w4a8_per_group_gemm(m: int, n: int, k: int) -> Launch:
    group = 128
    x, weights, packed = integers((m, k), "int8"), integers((n, k)), integers((n, k // 2), "int8")
    zeros, scales = integers((n, k // group)), integers((n, k // group))
    laid_zeros, laid_scales = integers((k // group, n), "int8"), integers((k // group, n), "int8")
    row_scales, column_scales, out = tensors("float16", (m,), (n,), (m, n))

    def run() -> object:
        torch.ops.sgl_kernel.qserve_w4a8_per_group_gemm.default(
            x, packed, laid_zeros, laid_scales, column_scales, row_scales, out
        )
        return out

    def fill(seed: int) -> None:
        redraw_integers(seed, -127, 128, x)
        redraw_integers(seed + 100, 0, 16, weights, zeros)
        # Up to 15 times the scale must fit in 8 bits.
        redraw_integers(seed + 200, 1, 8, scales)
        packed.copy_(references.pack(weights))
        laid_scales.copy_(references.lay_out(scales))
        laid_zeros.copy_(references.lay_out(-zeros * scales))
        redraw_uniform(seed + 300, 0.0005, 0.001, row_scales)
        redraw_uniform(seed + 400, 0.005, 0.01, column_scales)

    def reference() -> object:
        spread = [part.repeat_interleave(group, dim=1) for part in (zeros, scales)]
        product = x.double() @ ((weights - spread[0]) * spread[1]).double().t()
        return product * row_scales.double()[:, None] * column_scales.double()

    return Launch(
        run=run,
        reference=reference,
        redraw=fill,
        tolerance=Tolerance(
            relative=3 * UNIT["float16"],
            absolute=UNIT["float16"] * 0.01,
            source="exact int32 sum, two scales multiplied in float32 or half, one rounding to half",
        ),
    )
