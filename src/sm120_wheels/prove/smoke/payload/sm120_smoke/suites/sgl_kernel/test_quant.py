"""Quantisers to 8 bits, by token and by group, and the dequantiser of AWQ's 4-bit weights."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import integers, mark, marks, redraw, redraw_bytes, redraw_uniform, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import quant as references
from sm120_smoke.tolerance import UNIT, rounding

EPS = 1e-10
VALUES = Tolerance(share=0.004, source="a quotient at the boundary of two codes may fall either way: the reciprocal")
SCALES = Tolerance(relative=16 * UNIT["float32"], source="one fast division, or a product, in float32")
EXPONENTS = Tolerance(share=0.004, source="exact but where the largest value is a power of two")


@case("sgl_kernel::sgl_per_token_quant_fp8")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("rows", "hidden"),
    # From 16 rows for each multiprocessor on (2112 on 132 of them) a warp takes a row, through shared memory or not.
    [(1, 128), (17, 7168), (33, 1336), (5, 1028), (4099, 1024), (4099, 2056)],
)
def test_sgl_per_token_quant_fp8(dtype: str, rows: int, hidden: int) -> Launch:
    (x,) = tensors(dtype, (rows, hidden))
    (out,) = tensors("float8_e4m3fn", (rows, hidden))
    (scales,) = tensors("float32", (rows, 1))

    def run() -> object:
        torch.ops.sgl_kernel.sgl_per_token_quant_fp8.default(x, out, scales)
        return out.float(), scales

    return Launch(
        run=run,
        reference=lambda: references.per_token(x),
        redraw=lambda seed: redraw(seed, x),
        tolerance=(VALUES, SCALES),
    )


def _codes(target: str, group: int) -> Tolerance:
    if target != "int8":
        return VALUES
    return Tolerance(
        share=1 / group + VALUES.share,
        source="int8 drops the fraction: the largest of a group is 127, or 126 after a division that was rounded down",
    )


def _limits(target: str) -> tuple[float, float]:
    return references.LEAST[target], references.LARGEST[target]


def _scale_buffers(rows: int, groups: int, layout: str, apart: int) -> tuple[Any, Any, Any]:
    """The scales as the operator takes them, a function that reads them as ``[rows, groups]``, and what lies between.

    ``rows``: row by row. ``columns``: column by column, columns of rows rounded up to 4, and ``apart`` more.
    ``powers``: the same of words that hold four exponents each.
    """
    if layout == "rows":
        scales = torch.zeros((rows, groups), dtype=torch.float32, device="cuda")
        return scales, lambda: scales, scales[:, groups:]
    aligned = (rows + 3) // 4 * 4 + apart
    if layout == "columns":
        base = torch.zeros((groups, aligned), dtype=torch.float32, device="cuda")
        return base.t()[:rows], lambda: base.t()[:rows].contiguous(), base[:, rows:]
    words = integers(((groups + 3) // 4, aligned))

    def exponents() -> Any:
        return words[:, :rows].t().contiguous().view(torch.uint8)[:, :groups].int()

    return words.t()[:rows], exponents, words[:, rows:]


def _group_quant(
    operator: str,
    dtype: str,
    target: str,
    layout: str,
    shape: tuple[int, int],
    group: int,
    *,
    fused: bool = False,
    apart: int = 0,
) -> Launch:
    rows, hidden = shape
    (x,) = tensors(dtype, (rows, hidden * 2 if fused else hidden))
    (out,) = tensors(target, (rows, hidden))
    scales, read, between = _scale_buffers(rows, hidden // group, layout, apart)
    aside = (between,) if apart else ()
    powers = layout == "powers"
    launch = getattr(torch.ops.sgl_kernel, operator).default
    more = (fused, None) if operator.endswith("_v2") else ()

    def run() -> object:
        launch(x, out, scales, group, EPS, *_limits(target), powers, *more)
        return out.float(), read(), *aside

    def reference() -> object:
        wanted = references.per_group(references.silu_and_mul(x) if fused else x, group, target, powers=powers)
        return *wanted, *marks(*aside)

    def fill(seed: int) -> None:
        redraw(seed, x)
        mark(*aside)

    return Launch(
        run=run,
        reference=reference,
        redraw=fill,
        tolerance=(_codes(target, group), EXPONENTS if powers else SCALES, *[EXACT] * len(aside)),
    )


SHAPES = [(1, 128, 128), (33, 1152, 64), (2051, 512, 32)]


@case("sgl_kernel::sgl_per_token_group_quant_8bit")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("target", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize(("rows", "hidden", "group"), SHAPES)
def test_sgl_per_token_group_quant_8bit(dtype: str, target: str, rows: int, hidden: int, group: int) -> Launch:
    return _group_quant("sgl_per_token_group_quant_8bit", dtype, target, "rows", (rows, hidden), group)


@case("sgl_kernel::sgl_per_token_group_quant_8bit")
@pytest.mark.parametrize("layout", ["columns", "powers"])
@pytest.mark.parametrize(("rows", "hidden", "group"), [(17, 4096, 128), (2051, 768, 128)])
def test_sgl_per_token_group_quant_8bit_layouts(layout: str, rows: int, hidden: int, group: int) -> Launch:
    return _group_quant("sgl_per_token_group_quant_8bit", "bfloat16", "float8_e4m3fn", layout, (rows, hidden), group)


@case("sgl_kernel::sgl_per_token_group_quant_8bit_v2")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("target", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize(("rows", "hidden", "group"), [*SHAPES, (65, 2048, 16)])
def test_sgl_per_token_group_quant_8bit_v2(dtype: str, target: str, rows: int, hidden: int, group: int) -> Launch:
    return _group_quant("sgl_per_token_group_quant_8bit_v2", dtype, target, "rows", (rows, hidden), group)


@case("sgl_kernel::sgl_per_token_group_quant_8bit_v2")
@pytest.mark.parametrize(("layout", "fused"), [("columns", False), ("powers", False), ("powers", True)])
@pytest.mark.parametrize(("rows", "hidden", "group"), [(17, 4096, 128), (2051, 768, 128)])
def test_sgl_per_token_group_quant_8bit_v2_layouts(
    layout: str, fused: bool, rows: int, hidden: int, group: int
) -> Launch:
    operator = "sgl_per_token_group_quant_8bit_v2"
    return _group_quant(operator, "bfloat16", "float8_e4m3fn", layout, (rows, hidden), group, fused=fused)


@case("sgl_kernel::{operator}")
@pytest.mark.parametrize(
    ("operator", "layout"),
    [
        ("sgl_per_token_group_quant_8bit", "columns"),
        ("sgl_per_token_group_quant_8bit_v2", "columns"),
        ("sgl_per_token_group_quant_8bit_v2", "powers"),
    ],
)
def test_scales_of_columns_apart(operator: str, layout: str) -> Launch:
    """Values must be contiguous; columns of scales may lie further apart than they are long."""
    return _group_quant(operator, "bfloat16", "float8_e4m3fn", layout, (33, 768), 128, apart=12)


@case("sgl_kernel::sgl_per_token_group_quant_8bit_v2")
@pytest.mark.parametrize(("experts", "tokens", "hidden"), [(1, 4, 2048), (6, 1032, 4096)])
def test_sgl_per_token_group_quant_8bit_v2_masked(experts: int, tokens: int, hidden: int) -> Launch:
    """Each expert's first rows only; the rest stays as it was. Groups of a row must be a multiple of 16."""
    group = 128
    (x,) = tensors("bfloat16", (experts, tokens, 2 * hidden))
    (out,) = tensors("float8_e4m3fn", (experts, tokens, hidden))
    words = integers((experts, hidden // group // 4, tokens))
    counts = torch.tensor([(tokens, 1, tokens // 2 + 1, 0)[i % 4] for i in range(experts)], device="cuda").int()
    used = torch.arange(tokens, device="cuda") < counts[:, None]

    def run() -> object:
        out.zero_()
        words.zero_()
        torch.ops.sgl_kernel.sgl_per_token_group_quant_8bit_v2.default(
            x, out, words.transpose(1, 2), group, EPS, *_limits("float8_e4m3fn"), True, True, counts
        )
        return out.float(), words.transpose(1, 2).contiguous().view(torch.uint8).int()

    def reference() -> object:
        values, powers = references.per_group(references.silu_and_mul(x), group, "float8_e4m3fn", powers=True)
        return values * used[..., None], powers * used[..., None]

    return Launch(run=run, reference=reference, redraw=lambda seed: redraw(seed, x), tolerance=(VALUES, EXPONENTS))


@case("sgl_kernel::awq_dequantize")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns", "groups"), [(128, 64, 1), (3584, 448, 28), (512, 24, 4)])
def test_awq_dequantize(dtype: str, rows: int, columns: int, groups: int) -> Launch:
    weights, zeros = integers((rows, columns // 8)), integers((groups, columns // 8))
    (scales,) = tensors(dtype, (groups, columns))

    def run() -> object:
        return torch.ops.sgl_kernel.awq_dequantize.default(weights, scales, zeros)

    def fill(seed: int) -> None:
        redraw_bytes(seed, weights, zeros)
        redraw_uniform(seed + 100, 0.01, 0.1, scales)

    return Launch(
        run=run,
        reference=lambda: references.awq(weights, scales, zeros),
        redraw=fill,
        tolerance=rounding(dtype, source="exact difference of integers below 16, one product in the dtype"),
    )
