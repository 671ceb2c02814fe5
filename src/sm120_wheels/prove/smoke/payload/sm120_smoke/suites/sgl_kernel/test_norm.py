"""Root mean square norms: flashinfer's kernels, compiled into sgl-kernel. Odd hidden sizes go one by one."""

from __future__ import annotations

import pytest

from sm120_smoke.case import Launch, Needs, case
from sm120_smoke.draw import redraw, rows_apart, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import norm as references
from sm120_smoke.tolerance import rounding

SOURCE = "one rounding to the dtype after a float32 tree sum, rsqrt.approx (2 ulp) and two products"
PDL = Needs(least_capability=(9, 0), why="programmatic dependent launch needs compute capability 9.0")
EPS = 1e-6
SHAPES = [(1, 128), (17, 4096), (3, 1537), (4099, 1536)]


def _norm(operator: str, dtype: str, rows: int, hidden: int, *, padding: int = 0, pdl: bool, offset: float) -> Launch:
    x, out = rows_apart(dtype, rows, hidden, padding), rows_apart(dtype, rows, hidden, padding * 2)
    (weight,) = tensors(dtype, (hidden,))
    launch = getattr(torch.ops.sgl_kernel, operator).default

    def run() -> object:
        launch(out, x, weight, EPS, pdl)
        return out

    return Launch(
        run=run,
        reference=lambda: references.rmsnorm(x, weight, EPS, offset=offset),
        redraw=lambda seed: redraw(seed, x, weight),
        tolerance=rounding(dtype, float32_steps=32, scale=4, source=SOURCE),
    )


def _fused(operator: str, dtype: str, rows: int, hidden: int, *, pdl: bool, offset: float) -> Launch:
    x, residual, weight = tensors(dtype, (rows, hidden), (rows, hidden), (hidden,))
    launch = getattr(torch.ops.sgl_kernel, operator).default

    def run() -> object:
        launch(x, residual, weight, EPS, pdl)
        return x, residual

    return Launch(
        run=run,
        reference=lambda: references.fused_add_rmsnorm(x, residual, weight, EPS, offset=offset),
        redraw=lambda seed: redraw(seed, x, residual, weight),
        tolerance=(
            rounding(dtype, float32_steps=32, scale=4, source=SOURCE),
            rounding(dtype, float32_steps=1, source="one float32 sum, one rounding to the dtype"),
        ),
    )


@case("sgl_kernel::rmsnorm")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_rmsnorm(dtype: str, rows: int, hidden: int) -> Launch:
    return _norm("rmsnorm", dtype, rows, hidden, pdl=False, offset=0.0)


@case("sgl_kernel::rmsnorm")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rmsnorm_rows_apart(dtype: str) -> Launch:
    return _norm("rmsnorm", dtype, 33, 512, padding=64, pdl=False, offset=0.0)


@case("sgl_kernel::rmsnorm", needs=PDL)
@pytest.mark.parametrize(("rows", "hidden"), SHAPES[1:3])
def test_rmsnorm_dependent_launch(rows: int, hidden: int) -> Launch:
    return _norm("rmsnorm", "bfloat16", rows, hidden, pdl=True, offset=0.0)


@case("sgl_kernel::gemma_rmsnorm")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_gemma_rmsnorm(dtype: str, rows: int, hidden: int) -> Launch:
    return _norm("gemma_rmsnorm", dtype, rows, hidden, pdl=False, offset=1.0)


@case("sgl_kernel::gemma_rmsnorm", needs=PDL)
@pytest.mark.parametrize(("rows", "hidden"), SHAPES[1:3])
def test_gemma_rmsnorm_dependent_launch(rows: int, hidden: int) -> Launch:
    return _norm("gemma_rmsnorm", "bfloat16", rows, hidden, padding=16, pdl=True, offset=1.0)


@case("sgl_kernel::fused_add_rmsnorm")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_fused_add_rmsnorm(dtype: str, rows: int, hidden: int) -> Launch:
    return _fused("fused_add_rmsnorm", dtype, rows, hidden, pdl=False, offset=0.0)


@case("sgl_kernel::fused_add_rmsnorm", needs=PDL)
@pytest.mark.parametrize(("rows", "hidden"), SHAPES[1:3])
def test_fused_add_rmsnorm_dependent_launch(rows: int, hidden: int) -> Launch:
    return _fused("fused_add_rmsnorm", "bfloat16", rows, hidden, pdl=True, offset=0.0)


@case("sgl_kernel::gemma_fused_add_rmsnorm")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_gemma_fused_add_rmsnorm(dtype: str, rows: int, hidden: int) -> Launch:
    return _fused("gemma_fused_add_rmsnorm", dtype, rows, hidden, pdl=False, offset=1.0)


@case("sgl_kernel::gemma_fused_add_rmsnorm", needs=PDL)
@pytest.mark.parametrize(("rows", "hidden"), SHAPES[1:3])
def test_gemma_fused_add_rmsnorm_dependent_launch(rows: int, hidden: int) -> Launch:
    return _fused("gemma_fused_add_rmsnorm", "bfloat16", rows, hidden, pdl=True, offset=1.0)
