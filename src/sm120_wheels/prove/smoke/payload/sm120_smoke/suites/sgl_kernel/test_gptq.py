"""GPTQ's weights of 2, 3, 4 and 8 bits: products, and the order that ExLlama's kernels want."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import integers, redraw, redraw_bytes, redraw_distinct, redraw_uniform, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import gptq as references
from sm120_smoke.tolerance import UNIT


def _tolerance(depth: int, size: float) -> Tolerance:
    return Tolerance(
        relative=2 * UNIT["float16"],
        absolute=4 * UNIT["float16"] * size * depth**0.5 * (depth / 8) ** 0.5,
        source=f"half-precision sums of {depth} products of about {size:g}: a rounding for every few of them",
    )


def _product(rows: int, columns: int, depth: int, group: int, bits: int, *, ordered: bool) -> Launch:
    (x,) = tensors("float16", (rows, depth))
    weights = integers((depth * bits // 32, columns))
    zeros = integers((depth // group, columns * bits // 32))
    (scales,) = tensors("float16", (depth // group, columns))
    plain = integers(tuple(weights.shape))
    # The group of each row; in ExLlama's order an order of rows, none here.
    owners = torch.arange(0 if ordered else depth, dtype=torch.int32, device="cuda") // group

    def run() -> object:
        return torch.ops.sgl_kernel.gptq_gemm.default(x, weights, zeros, scales, owners, ordered, bits)

    def fill(seed: int) -> None:
        redraw(seed, x)
        redraw_bytes(seed + 100, plain, zeros)
        weights.copy_(references.exllama_order(plain) if ordered else plain)
        redraw_uniform(seed + 200, 0.5 / 2**bits, 1.0 / 2**bits, scales)

    return Launch(
        run=run,
        reference=lambda: x.double() @ references.dequantize(plain, zeros, scales, bits),
        redraw=fill,
        tolerance=_tolerance(depth, 0.35),
    )


@case("sgl_kernel::gptq_gemm")
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "group"), [(1, 512, 512, 128), (8, 256, 1024, 64), (130, 512, 256, 32)]
)
def test_gptq_gemm(bits: int, rows: int, columns: int, depth: int, group: int) -> Launch:
    """Up to 8 rows of 4 and 8 bits have a kernel; more, and 2 bits, are dequantised and go to cuBLAS."""
    return _product(rows, columns, depth, group, bits, ordered=False)


@case("sgl_kernel::gptq_gemm")
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "group"), [(1, 512, 512, 128), (33, 256, 1024, 128), (130, 512, 256, 128)]
)
def test_gptq_gemm_in_exllama_order(rows: int, columns: int, depth: int, group: int) -> Launch:
    return _product(rows, columns, depth, group, 4, ordered=True)


@case("sgl_kernel::gptq_shuffle")
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize(("depth", "columns"), [(128, 64), (1024, 520)])
def test_gptq_shuffle(permuted: bool, depth: int, columns: int) -> Launch:
    weights = integers((depth // 8, columns))
    order = integers((depth,)) if permuted else integers((0,))

    def run() -> object:
        torch.ops.sgl_kernel.gptq_shuffle.default(weights, order, 4)
        return weights

    def fill(seed: int) -> None:
        redraw_bytes(seed, weights)
        if permuted:
            redraw_distinct(seed + 100, depth, order)

    def reference() -> Any:
        return references.exllama_order(references.reorder(weights, order) if permuted else weights)

    return Launch(
        run=run,
        reference=reference,
        redraw=fill,
        tolerance=EXACT,
        no_graph="with an order of rows it allocates with cudaMalloc and waits for the device" if permuted else "",
    )
