"""Grouped matrix products of mixtures of experts: e4m3 by blocks, and 4-bit weights with e4m3 activations."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import Launch, Needs, NotRun, Tolerance, case
from sm120_smoke.draw import integers, redraw, redraw_integers, redraw_uniform, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import gemm as references
from sm120_smoke.tolerance import product_sum_fp8

WORKSPACE = 256 << 20
GROUPS = [([3, 1], 128, 128), ([17, 64, 1, 200], 512, 1024), ([256, 300, 0, 5, 129, 64, 1, 31], 768, 512)]
"""Rows of each expert, columns, depth. An expert may get none."""


def _blockwise(dtype: str, sizes: list[int], n: int, k: int, launch: Any) -> Launch:
    experts, total = len(sizes), sum(sizes)
    a, transposed = tensors("float8_e4m3fn", (total, k), (experts, n, k))
    scales_a, rows_b = tensors("float32", (total, k // 128), (experts, n // 128, k // 128))
    b, scales_b = transposed.transpose(1, 2), rows_b.transpose(1, 2)
    (out,) = tensors(dtype, (total, n))
    problems = torch.tensor([[size, n, k] for size in sizes], dtype=torch.int32, device="cuda")
    starts = torch.tensor([sum(sizes[:i]) for i in range(experts)], dtype=torch.int32, device="cuda")
    stride_a, stride_c = (torch.full((experts,), value, dtype=torch.int64, device="cuda") for value in (k, n))
    workspace = torch.empty((WORKSPACE,), dtype=torch.uint8, device="cuda")

    def run() -> object:
        launch(out, a, b, scales_a, scales_b, stride_a, stride_c, problems, starts, workspace)
        return out

    def fill(seed: int) -> None:
        redraw(seed, a, transposed)
        redraw_uniform(seed + 100, 0.1, 0.5, scales_a, rows_b)

    def reference() -> object:
        return references.grouped(
            sizes, lambda i, rows: references.blockwise(a[rows], b[i], scales_a[rows], scales_b[i])
        )

    return Launch(
        run=run,
        reference=reference,
        redraw=fill,
        tolerance=product_sum_fp8(dtype, terms=k, scale=0.1),
        keep=(workspace,),
    )


# Read in the dispatch: 9.0, 10.0 and 10.3; everything else, 12.0 among it, is "not implemented".
GROUPED = Needs(capability=((9, 0), (10, 0), (10, 3)), why="the dispatch takes 9.0, 10.0 and 10.3 only")


@case("sgl_kernel::fp8_blockwise_scaled_grouped_mm", needs=GROUPED)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("sizes", "n", "k"), GROUPS)
def test_fp8_blockwise_scaled_grouped_mm(dtype: str, sizes: list[int], n: int, k: int) -> Launch:
    experts = len(sizes)
    pointers = [integers((experts,), "int64") for _ in range(5)]
    layouts = [integers((experts, 5)) for _ in range(2)]

    def launch(out: Any, a: Any, b: Any, sa: Any, sb: Any, stride: Any, stride_c: Any, *rest: Any) -> None:
        torch.ops.sgl_kernel.fp8_blockwise_scaled_grouped_mm.default(
            out, *pointers, a, b, sa, sb, stride, stride, stride_c, *layouts, *rest
        )

    return _blockwise(dtype, sizes, n, k, launch)


# Compiled for 9.0 only (CUTLASS_ARCH_MMA_SM90_SUPPORTED); built elsewhere it refuses.
@case(
    "sgl_kernel::es_fp8_blockwise_scaled_grouped_mm",
    needs=Needs(capability=((9, 0),), why="written for 9.0: elsewhere the operator refuses"),
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("sizes", "n", "k"), GROUPS)
def test_es_fp8_blockwise_scaled_grouped_mm(dtype: str, sizes: list[int], n: int, k: int) -> Launch:
    def launch(out: Any, a: Any, b: Any, sa: Any, sb: Any, stride: Any, stride_c: Any, *rest: Any) -> None:
        torch.ops.sgl_kernel.es_fp8_blockwise_scaled_grouped_mm.default(
            out, a, b, sa, sb, stride, stride, stride_c, *rest
        )

    return _blockwise(dtype, sizes, n, k, launch)


@case(
    "sgl_kernel::cutlass_w4a8_moe_mm",
    needs=Needs(capability=((9, 0),), why="written for 9.0's warp-group products; no other architecture is compiled"),
)
@pytest.mark.parametrize(
    ("sizes", "n", "k"), [([1], 1024, 512), ([2, 0, 5, 9], 512, 256), ([16, 3, 13, 32, 0, 1, 7, 40], 2048, 1024)]
)
def test_cutlass_w4a8_moe_mm(sizes: list[int], n: int, k: int) -> Launch:
    experts, total, group = len(sizes), sum(sizes), 128
    (a,), (out,), (scale_a,) = (
        tensors("float8_e4m3fn", (total, k)),
        tensors("bfloat16", (total, n)),
        tensors("float32", (1,)),
    )
    weights, packed = integers((experts, n, k), "int8"), integers((experts, n, k // 2), "int8")
    (scales,) = tensors("bfloat16", (experts, n, k // group))
    # The scales of four groups of a column lie side by side where the depth has a multiple of four groups.
    side = 4 if k % (4 * group) == 0 else 1
    (laid_out,) = tensors("bfloat16", (experts, k // group // side, n * side))
    # The kernel multiplies transposed: weights by activations.
    problems = torch.tensor([[n, size, k] for size in sizes], dtype=torch.int32, device="cuda")
    starts = torch.tensor([sum(sizes[:i]) for i in range(experts)], dtype=torch.int32, device="cuda")
    stride_k, stride_n = (torch.full((experts, 3), value, dtype=torch.int64, device="cuda") for value in (k, n))

    def run() -> object:
        torch.ops.sgl_kernel.cutlass_w4a8_moe_mm.default(
            out, a, packed, scale_a, laid_out, starts, problems, stride_k, stride_k, stride_n, stride_n, group, 8
        )
        return out

    def fill(seed: int) -> None:
        redraw(seed, a)
        redraw_integers(seed + 100, -8, 8, weights)
        packed.copy_(references.pack_nibbles(weights))
        redraw_uniform(seed + 200, 0.002, 0.008, scales)
        laid_out.copy_(scales.unflatten(-1, (-1, side)).transpose(1, 2).flatten(2))
        redraw_uniform(seed + 300, 0.5, 1.0, scale_a)

    def reference() -> object:
        whole = weights.double() * scales.double().repeat_interleave(group, dim=-1)
        return references.grouped(sizes, lambda i, rows: a[rows].double() @ whole[i].t() * scale_a.double())

    plain = product_sum_fp8("bfloat16", terms=k, scale=0.025)
    return Launch(
        run=run,
        reference=reference,
        redraw=fill,
        tolerance=Tolerance(
            relative=2 * plain.relative,
            absolute=plain.absolute + 2.0**-7 * 0.025 * k**0.5,
            source=plain.source + "; each group's sum is scaled by a bfloat16 and added",
        ),
    )


@case(
    "sgl_kernel::es_sm100_mxfp8_blockscaled_grouped_mm",
    "sgl_kernel::es_sm100_mxfp8_blockscaled_grouped_quant",
    needs=Needs(capability=((10, 0), (10, 3)), why="written for 10.0's tensor memory"),
)
def test_es_sm100_mxfp8_blockscaled() -> Launch:
    raise NotRun("no case is written for compute capability 10.0: nobody here has such a GPU")
