"""Dense matrix products: 8-bit with scales, batched 8-bit, and DeepSeek-V3's small ones."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import Launch, Needs, Tolerance, case
from sm120_smoke.draw import dtype_of, integers, redraw, redraw_integers, redraw_uniform, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.operators import of_some_versions
from sm120_smoke.references import gemm as references
from sm120_smoke.tolerance import UNIT, product_sum, product_sum_fp8

SIZES = [
    (1, 128, 512, False),
    (17, 1024, 1040, True),
    (128, 4096, 512, False),
    (513, 768, 2048, True),
    (4099, 256, 512, True),
]
"""Rows, columns, depth; with a bias. Depths are multiples of 16, columns of 8: alignment of the loads."""


@case("sgl_kernel::fp8_scaled_mm", needs=Needs(least_capability=(8, 9), why="tensor cores with e4m3"))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n", "k", "biased"), SIZES)
def test_fp8_scaled_mm(dtype: str, m: int, n: int, k: int, biased: bool) -> Launch:
    a, transposed = tensors("float8_e4m3fn", (m, k), (n, k))
    scales_a, scales_b = tensors("float32", (m,), (n,))
    bias = tensors(dtype, (n,))[0] if biased else None
    b = transposed.t()

    def run() -> object:
        return torch.ops.sgl_kernel.fp8_scaled_mm.default(a, b, scales_a, scales_b, dtype_of(dtype), bias)

    def fill(seed: int) -> None:
        redraw(seed, a, transposed)
        redraw_uniform(seed + 100, 0.1, 0.5, scales_a, scales_b)
        if bias is not None:
            redraw(seed + 200, bias)

    plain = product_sum_fp8(dtype, terms=k, scale=0.25)
    return Launch(
        run=run,
        reference=lambda: references.scaled(a, b, scales_a, scales_b, bias),
        redraw=fill,
        tolerance=Tolerance(
            relative=2 * plain.relative,
            absolute=plain.absolute + (UNIT[dtype] * 5 if biased else 0.0),
            source=plain.source + "; a bias (at most 5) may be added after a rounding",
        ),
    )


# Read in int8_scaled_mm's dispatch: 7.5 to 8.9 and 9.0 only, everything else is "not implemented".
INT8 = Needs(capability=((8, 0), (8, 6), (8, 9), (9, 0)), why="the dispatch ends at 9.0; 12.0 is not implemented")


@case("sgl_kernel::int8_scaled_mm", needs=INT8)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n", "k", "biased"), SIZES)
def test_int8_scaled_mm(dtype: str, m: int, n: int, k: int, biased: bool) -> Launch:
    a, transposed = integers((m, k), "int8"), integers((n, k), "int8")
    scales_a, scales_b = tensors("float32", (m,), (n,))
    bias = tensors(dtype, (n,))[0] if biased else None
    b = transposed.t()

    def run() -> object:
        return torch.ops.sgl_kernel.int8_scaled_mm.default(a, b, scales_a, scales_b, dtype_of(dtype), bias)

    def fill(seed: int) -> None:
        redraw_integers(seed, -128, 128, a, transposed)
        redraw_uniform(seed + 100, 0.001, 0.01, scales_a, scales_b)
        if bias is not None:
            redraw(seed + 200, bias)

    return Launch(
        run=run,
        reference=lambda: references.scaled(a, b, scales_a, scales_b, bias),
        redraw=fill,
        tolerance=Tolerance(
            relative=2 * UNIT[dtype] + 4 * UNIT["float32"],
            absolute=UNIT[dtype] * (5 if biased else 1e-3),
            source="exact int32 sum, two float32 products; a bias (at most 5) may be added after a rounding",
        ),
    )


# The dispatch takes 9.0, 10.0, 10.3 and everything from 12.0 on.
@case(
    "sgl_kernel::fp8_blockwise_scaled_mm",
    needs=Needs(capability=((9, 0), (10, 0), (10, 3), (12, 0), (12, 1)), why="the dispatch takes no other"),
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 128, 128), (7, 512, 7168), (64, 1536, 1536), (513, 768, 2048), (4099, 256, 512)]
)
def test_fp8_blockwise_scaled_mm(dtype: str, m: int, n: int, k: int) -> Launch:
    a, transposed = tensors("float8_e4m3fn", (m, k), (n, k))
    columns_a, rows_b = tensors("float32", (k // 128, m), (n // 128, k // 128))
    b, scales_a, scales_b = transposed.t(), columns_a.t(), rows_b.t()
    launch = of_some_versions("sgl_kernel::fp8_blockwise_scaled_mm")

    def run() -> object:
        return launch(a, b, scales_a, scales_b, dtype_of(dtype))

    def fill(seed: int) -> None:
        redraw(seed, a, transposed)
        redraw_uniform(seed + 100, 0.1, 0.5, columns_a, rows_b)

    return Launch(
        run=run,
        reference=lambda: references.blockwise(a, b, scales_a, scales_b),
        redraw=fill,
        tolerance=product_sum_fp8(dtype, terms=k, scale=0.1),
    )


@case("sgl_kernel::bmm_fp8", needs=Needs(least_capability=(8, 9), why="cuBLASLt has e4m3 and e5m2 from 8.9 on"))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("types", [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")])
@pytest.mark.parametrize(("batch", "m", "n", "k"), [(1, 16, 64, 64), (16, 48, 80, 64), (3, 256, 512, 1024)])
def test_bmm_fp8(dtype: str, types: tuple[str, str], batch: int, m: int, n: int, k: int) -> Launch:
    (a,), (transposed,) = tensors(types[0], (batch, m, k)), tensors(types[1], (batch, n, k))
    (out,) = tensors(dtype, (batch, m, n))
    scale_a, scale_b = tensors("float32", (1,), (1,))
    workspace = torch.empty((32 << 20,), dtype=torch.uint8, device="cuda")
    b = transposed.transpose(1, 2)

    def run() -> object:
        handle = torch.cuda.current_blas_handle()
        torch.ops.sgl_kernel.bmm_fp8.default(a, b, out, scale_a, scale_b, workspace, handle)
        return out

    def fill(seed: int) -> None:
        redraw(seed, a, transposed)
        redraw_uniform(seed + 100, 0.1, 0.5, scale_a, scale_b)

    return Launch(
        run=run,
        reference=lambda: a.double() @ b.double() * scale_a.double() * scale_b.double(),
        redraw=fill,
        tolerance=product_sum_fp8(dtype, terms=k, scale=0.25),
        keep=(workspace,),
    )


HOPPER_ON = Needs(least_capability=(9, 0), why="the operator asks for compute capability 9.0 or later")


def _bf16_product(operator: str, dtype: str, rows: int, columns: int, *, transposed: bool) -> Launch:
    depth = 7168
    x, weight = tensors("bfloat16", (rows, depth), (columns, depth))
    (out,) = tensors(dtype, (rows, columns))
    launch = of_some_versions(f"sgl_kernel::{operator}")
    other: Any = weight.t() if transposed else weight

    def run() -> object:
        launch(out, x, other)
        return out

    return Launch(
        run=run,
        reference=lambda: x.double() @ weight.double().t(),
        redraw=lambda seed: redraw(seed, x, weight),
        tolerance=product_sum(dtype, terms=depth, scale=1.0),
    )


@case("sgl_kernel::dsv3_fused_a_gemm", needs=HOPPER_ON)
@pytest.mark.parametrize("rows", [1, 5, 8, 9, 16])
def test_dsv3_fused_a_gemm(rows: int) -> Launch:
    """Depth 7168 and 2112 columns, DeepSeek-V3's, are fixed in the kernel."""
    return _bf16_product("dsv3_fused_a_gemm", "bfloat16", rows, 2112, transposed=True)


@case("sgl_kernel::dsv3_router_gemm", needs=HOPPER_ON)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("experts", [256, 384])
@pytest.mark.parametrize("rows", [1, 7, 16])
def test_dsv3_router_gemm(dtype: str, experts: int, rows: int) -> Launch:
    return _bf16_product("dsv3_router_gemm", dtype, rows, experts, transposed=False)
