"""Gated activations. A row must be a multiple of 16 bytes: the kernels load vectors of that size."""

from __future__ import annotations

import pytest

from sm120_smoke.case import Launch, Tolerance, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import activation as references
from sm120_smoke.tolerance import FAST_STEPS, FAST_TANH, rounding

SOURCE = "float32 exp or erf (fast), division, two products, one rounding to the dtype"
SHAPES = [(1, 64), (7, 13832), (4099, 512)]


def _gated(operator: str, dtype: str, rows: int, half: int, activation: str) -> Launch:
    x, out = tensors(dtype, (rows, 2 * half), (rows, half))
    launch = getattr(torch.ops.sgl_kernel, operator).default

    def run() -> object:
        launch(out, x)
        return out

    tolerance = rounding(dtype, float32_steps=FAST_STEPS, scale=4, source=SOURCE)
    if activation == "gelu_tanh":
        tolerance = Tolerance(
            relative=tolerance.relative + FAST_TANH,
            absolute=tolerance.absolute + FAST_TANH * 10,
            source=SOURCE + "; the fast tanh, from which 1 may be taken away: times half of two values of at most 20",
        )
    return Launch(
        run=run,
        reference=lambda: references.gated(x, activation),
        redraw=lambda seed: redraw(seed, x),
        tolerance=tolerance,
    )


@case("sgl_kernel::silu_and_mul")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "half"), SHAPES)
def test_silu_and_mul(dtype: str, rows: int, half: int) -> Launch:
    return _gated("silu_and_mul", dtype, rows, half, "silu")


@case("sgl_kernel::gelu_and_mul")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "half"), SHAPES)
def test_gelu_and_mul(dtype: str, rows: int, half: int) -> Launch:
    return _gated("gelu_and_mul", dtype, rows, half, "gelu")


@case("sgl_kernel::gelu_tanh_and_mul")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "half"), SHAPES)
def test_gelu_tanh_and_mul(dtype: str, rows: int, half: int) -> Launch:
    return _gated("gelu_tanh_and_mul", dtype, rows, half, "gelu_tanh")
