"""Root mean square norms: flashinfer's kernels, compiled into sgl-kernel. Odd hidden sizes go one by one."""

from __future__ import annotations

import pytest

from sm120_smoke.case import EXACT, Launch, Needs, case
from sm120_smoke.draw import Apart, mark, marks, redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import norm as references
from sm120_smoke.tolerance import rounding

SOURCE = "one rounding to the dtype after a float32 tree sum, rsqrt.approx (2 ulp) and two products"
PDL = Needs(least_capability=(9, 0), why="programmatic dependent launch needs compute capability 9.0")
EPS = 1e-6
SHAPES = [(1, 128), (17, 4096), (3, 1537), (4099, 1536)]


def _norm(operator: str, dtype: str, rows: int, hidden: int, *, padding: int = 0, pdl: bool, offset: float) -> Launch:
    x, out = Apart(dtype, (rows, hidden), padding), Apart(dtype, (rows, hidden), padding * 2)
    aside = (x.padding, out.padding) if padding else ()
    (weight,) = tensors(dtype, (hidden,))
    launch = getattr(torch.ops.sgl_kernel, operator).default

    def run() -> object:
        launch(out.rows, x.rows, weight, EPS, pdl)
        return out.rows, *aside

    def fill(seed: int) -> None:
        redraw(seed, x.rows, weight)
        mark(*aside)

    return Launch(
        run=run,
        reference=lambda: (references.rmsnorm(x.rows, weight, EPS, offset=offset), *marks(*aside)),
        redraw=fill,
        tolerance=(rounding(dtype, float32_steps=32, scale=4, source=SOURCE), *[EXACT] * len(aside)),
    )


def _fused(operator: str, dtype: str, rows: int, hidden: int, *, padding: int = 0, pdl: bool, offset: float) -> Launch:
    x, residual = Apart(dtype, (rows, hidden), padding), Apart(dtype, (rows, hidden), padding * 2)
    aside = (x.padding, residual.padding) if padding else ()
    (weight,) = tensors(dtype, (hidden,))
    launch = getattr(torch.ops.sgl_kernel, operator).default

    def run() -> object:
        launch(x.rows, residual.rows, weight, EPS, pdl)
        return x.rows, residual.rows, *aside

    def fill(seed: int) -> None:
        redraw(seed, x.rows, residual.rows, weight)
        mark(*aside)

    def reference() -> object:
        return *references.fused_add_rmsnorm(x.rows, residual.rows, weight, EPS, offset=offset), *marks(*aside)

    return Launch(
        run=run,
        reference=reference,
        redraw=fill,
        tolerance=(
            rounding(dtype, float32_steps=32, scale=4, source=SOURCE),
            rounding(dtype, float32_steps=1, source="one float32 sum, one rounding to the dtype"),
            *[EXACT] * len(aside),
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


@case("sgl_kernel::gemma_rmsnorm")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gemma_rmsnorm_rows_apart(dtype: str) -> Launch:
    return _norm("gemma_rmsnorm", dtype, 33, 512, padding=64, pdl=False, offset=1.0)


@case("sgl_kernel::gemma_fused_add_rmsnorm")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "hidden", "padding"), [(33, 512, 64), (5, 1537, 3)])
def test_gemma_fused_add_rmsnorm_rows_apart(dtype: str, rows: int, hidden: int, padding: int) -> Launch:
    """The one without Gemma's offset is sgl-kernel's own, and takes contiguous rows only."""
    return _fused("gemma_fused_add_rmsnorm", dtype, rows, hidden, padding=padding, pdl=False, offset=1.0)


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
