"""Mixture-of-experts routing and reordering: everything of it that is no matrix product."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import integers, redraw, redraw_distinct, redraw_integers, redraw_ranks, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.operators import of_some_versions
from sm120_smoke.references import moe as references
from sm120_smoke.tolerance import FAST_STEPS, FAST_TANH, UNIT, rounding

WEIGHTS = Tolerance(
    relative=2 * FAST_STEPS * UNIT["float32"],
    absolute=FAST_STEPS * UNIT["float32"],
    source="float32 exp and divisions (fast), a sum over the experts",
)


def _topk_outputs(tokens: int, topk: int) -> tuple[Any, Any]:
    return tensors("float32", (tokens, topk))[0], integers((tokens, topk))


@case("sgl_kernel::topk_softmax")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("tokens", "experts", "topk", "renormalize", "cap", "biased"),
    [
        (1, 1, 1, False, 0.0, False),
        (7, 8, 2, True, 0.0, False),
        (129, 64, 6, False, 30.0, False),
        (33, 128, 8, True, 0.0, True),
        (2051, 256, 8, True, 0.0, False),
        (65, 512, 10, False, 0.0, True),
        (17, 160, 6, True, 5.0, True),  # not a power of two: softmax, then a choice of two at a time
        (17, 72, 1, False, 0.0, False),  # the same with a choice of one
    ],
)
def test_topk_softmax(
    dtype: str, tokens: int, experts: int, topk: int, renormalize: bool, cap: float, biased: bool
) -> Launch:
    (logits,) = tensors(dtype, (tokens, experts))
    bias = tensors("float32", (experts,))[0] if biased else None
    weights, indices = _topk_outputs(tokens, topk)
    capped = Tolerance(
        relative=FAST_TANH * 2 * cap, source="the fast tanh times the cap, in both of the logits of a quotient"
    )

    def run() -> object:
        torch.ops.sgl_kernel.topk_softmax.default(weights, indices, logits, renormalize, cap, bias)
        return weights, indices

    def fill(seed: int) -> None:
        redraw_ranks(seed, 2.0**-5, logits)
        if bias is not None:
            redraw_ranks(seed + 100, 2.0**-15, bias)

    return Launch(
        run=run,
        reference=lambda: references.topk_softmax(logits, topk, renormalize=renormalize, cap=cap, bias=bias),
        redraw=fill,
        tolerance=(capped if cap else WEIGHTS, EXACT),
        may_be_zero=experts == 1,
    )


@case("sgl_kernel::topk_sigmoid")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("tokens", "experts", "topk", "renormalize", "biased"),
    [(1, 4, 1, False, False), (129, 64, 6, True, False), (2051, 256, 8, True, True), (33, 96, 6, False, True)],
)
def test_topk_sigmoid(dtype: str, tokens: int, experts: int, topk: int, renormalize: bool, biased: bool) -> Launch:
    (logits,) = tensors(dtype, (tokens, experts))
    bias = tensors("float32", (experts,))[0] if biased else None
    weights, indices = _topk_outputs(tokens, topk)

    def run() -> object:
        torch.ops.sgl_kernel.topk_sigmoid.default(weights, indices, logits, renormalize, bias)
        return weights, indices

    def fill(seed: int) -> None:
        redraw_ranks(seed, 2.0**-5, logits)
        if bias is not None:
            redraw_integers(seed + 100, 0, 2, bias)  # whole units: they cannot tie with a sigmoid's differences

    return Launch(
        run=run,
        reference=lambda: references.topk_sigmoid(logits, topk, renormalize=renormalize, bias=bias),
        redraw=fill,
        tolerance=(WEIGHTS, EXACT),
    )


@case("sgl_kernel::moe_fused_gate")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("tokens", "experts", "groups", "chosen_groups", "topk", "shared", "scale_output"),
    [
        (1, 256, 8, 4, 8, 0, False),
        (2051, 256, 8, 4, 9, 1, True),
        (65, 128, 4, 2, 6, 0, True),
        (37, 64, 4, 2, 4, 0, False),  # no kernel of its own: the one with sizes known at run time
    ],
)
def test_moe_fused_gate(
    dtype: str, tokens: int, experts: int, groups: int, chosen_groups: int, topk: int, shared: int, scale_output: bool
) -> Launch:
    logits, bias = tensors(dtype, (tokens, experts), (experts,))
    scale = 2.5
    launch = of_some_versions("sgl_kernel::moe_fused_gate")

    def run() -> object:
        weights, indices = launch(logits, bias, groups, chosen_groups, topk, shared, scale, scale_output)
        return weights, indices

    def fill(seed: int) -> None:
        redraw(seed, logits)
        redraw(seed + 100, bias, scale=0.25)

    # The scores are rounded to the dtype before they are compared, so ties are common: the lower index wins. A score
    # that the kernel's expf puts on the other side of a rounding boundary changes a choice.
    share = 0.01
    return Launch(
        run=run,
        reference=lambda: references.fused_gate(
            logits, bias, groups, chosen_groups, topk, shared=shared, scale=scale, scale_output=scale_output
        ),
        redraw=fill,
        tolerance=(
            Tolerance(
                relative=2 * UNIT[dtype] + FAST_STEPS * UNIT["float32"], share=share, source="scores in the dtype"
            ),
            Tolerance(share=share, source="choices among scores in the dtype; see above"),
        ),
    )


@case("sgl_kernel::kimi_k2_moe_fused_gate")
@pytest.mark.parametrize(
    ("tokens", "experts", "topk", "renormalize", "scale_output"),
    [(1, 384, 8, True, False), (257, 384, 6, True, True), (2051, 384, 8, True, True), (1025, 256, 8, False, False)],
)
def test_kimi_k2_moe_fused_gate(tokens: int, experts: int, topk: int, renormalize: bool, scale_output: bool) -> Launch:
    logits, bias = tensors("float32", (tokens, experts), (experts,))
    launch = of_some_versions("sgl_kernel::kimi_k2_moe_fused_gate")

    def run() -> object:
        weights, indices = launch(logits, bias, topk, renormalize, 2.872, scale_output)
        return weights, indices

    def fill(seed: int) -> None:
        redraw_ranks(seed, 2.0**-5, logits)
        redraw_integers(seed + 100, 0, 2, bias)  # whole units: they cannot tie with a sigmoid's differences

    return Launch(
        run=run,
        reference=lambda: references.kimi_gate(
            logits, bias, topk, renormalize=renormalize, scale=2.872, scale_output=scale_output
        ),
        redraw=fill,
        tolerance=(WEIGHTS, EXACT),
    )


def _align_arguments(pad: bool) -> tuple[bool, ...]:
    """sgl-kernel 0.4.5 has one argument more: whether to leave out experts below zero."""
    schema = torch.ops.sgl_kernel.moe_align_block_size.default._schema
    return (pad, False) if len(schema.arguments) > 8 else (pad,)


@case("sgl_kernel::moe_align_block_size")
@pytest.mark.parametrize(("dtype", "pad"), [("int32", True), ("int32", False), ("int64", True)])
@pytest.mark.parametrize(
    ("tokens", "topk", "experts", "block"),
    # No token: with more than 63 experts the operator would launch its second kernel with no block.
    [(1, 1, 8, 16), (17, 4, 64, 32), (300, 8, 256, 128), (4099, 8, 64, 64), (33, 6, 257, 16), (0, 8, 8, 16)],
)
def test_moe_align_block_size(dtype: str, pad: bool, tokens: int, topk: int, experts: int, block: int) -> Launch:
    ids = integers((tokens, topk), dtype)
    total = tokens * topk
    # The operator fills by vectors of four, past an end that is no multiple of them.
    room = (total + (experts + 1) * (block - 1) + 3) // 4 * 4
    slots, owners = integers((room,)), integers(((room + block - 1) // block,))
    padded, cumulative = integers((1,)), integers((experts + 2,))
    arguments = _align_arguments(pad)

    def run() -> object:
        cumulative.zero_()
        owners.fill_(-1)
        slots.fill_(total)  # what the caller does where the operator is asked not to
        torch.ops.sgl_kernel.moe_align_block_size.default(
            # The operator counts one expert more than there are: the one of tokens that belong elsewhere.
            ids,
            experts + 1,
            block,
            slots,
            owners,
            padded,
            cumulative,
            *arguments,
        )
        return references.aligned_blocks(slots, owners, padded, ids, block, experts)

    return Launch(
        run=run,
        reference=lambda: references.align(ids, block, experts, room),
        redraw=lambda seed: redraw_integers(seed, 0, experts, ids),
        tolerance=EXACT,
        empty=tokens == 0,
    )


@case("sgl_kernel::moe_sum")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("tokens", "topk", "hidden"), [(1, 2, 128), (33, 3, 1023), (17, 4, 7168), (5, 6, 511)])
def test_moe_sum(dtype: str, tokens: int, topk: int, hidden: int) -> Launch:
    x, out = tensors(dtype, (tokens, topk, hidden), (tokens, hidden))

    def run() -> object:
        torch.ops.sgl_kernel.moe_sum.default(x, out)
        return out

    return Launch(
        run=run,
        reference=lambda: x.double().sum(dim=1),
        redraw=lambda seed: redraw(seed, x),
        tolerance=Tolerance(
            relative=UNIT[dtype],
            absolute=topk * UNIT[dtype] * 4 * topk**0.5,
            source="summed in the dtype: a rounding for each of the topk partial sums, of at most 4 sqrt(topk)",
        ),
    )


@case("sgl_kernel::moe_sum_reduce")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("tokens", "topk", "hidden"), [(1, 2, 129), (33, 8, 7168), (130, 9, 1023), (300, 8, 2048), (2051, 5, 512)]
)
def test_moe_sum_reduce(dtype: str, tokens: int, topk: int, hidden: int) -> Launch:
    x, out = tensors(dtype, (tokens, topk, hidden), (tokens, hidden))

    def run() -> object:
        torch.ops.sgl_kernel.moe_sum_reduce.default(x, out, 2.5)
        return out

    return Launch(
        run=run,
        reference=lambda: x.double().sum(dim=1) * 2.5,
        redraw=lambda seed: redraw(seed, x),
        tolerance=rounding(dtype, float32_steps=16, scale=16, source="float32 sum, one product, one rounding"),
    )


def _grouping(operator: str, tokens: int, topk: int, experts: int, n: int, k: int, *, scales: bool) -> Launch:
    ids = integers((tokens, topk))
    offsets, blocks = integers((experts + 1,)), integers((experts + 1,)) if scales else None
    sizes1, sizes2 = integers((experts, 3)), integers((experts, 3))
    gather, scatter = integers((tokens * topk,)), integers((tokens * topk,))

    def run() -> object:
        if operator == "prepare_moe_input":
            torch.ops.sgl_kernel.prepare_moe_input.default(
                ids, offsets, blocks, sizes1, sizes2, gather, scatter, experts, n, k
            )
        else:
            torch.ops.sgl_kernel.get_cutlass_w4a8_moe_mm_data.default(
                ids, offsets, sizes1, sizes2, gather, scatter, experts, n, k
            )
        if transposed:
            return [offsets, sizes1, sizes2]
        results = [offsets, sizes1, sizes2, *references.grouped_order(gather, scatter, ids)]
        return [*results, blocks] if blocks is not None else results

    def reference() -> list[object]:
        expected = references.grouping(ids, experts, n, k, scales=scales, transposed=transposed)
        # get_cutlass_w4a8_moe_mm_data takes two permutations and writes neither (w4a8_moe_data.cu of 0.4.4)
        return expected[:3] if transposed else expected

    transposed = operator == "get_cutlass_w4a8_moe_mm_data"
    return Launch(
        run=run,
        reference=reference,
        redraw=lambda seed: redraw_integers(seed, 0, experts, ids),
        tolerance=EXACT,
    )


@case("sgl_kernel::prepare_moe_input")
@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize(("tokens", "topk", "experts"), [(1, 1, 4), (33, 6, 64), (2051, 8, 256)])
def test_prepare_moe_input(tokens: int, topk: int, experts: int, scales: bool) -> Launch:
    return _grouping("prepare_moe_input", tokens, topk, experts, 512, 1024, scales=scales)


@case("sgl_kernel::get_cutlass_w4a8_moe_mm_data")
@pytest.mark.parametrize(("tokens", "topk", "experts"), [(1, 1, 4), (33, 6, 64), (2051, 8, 256)])
def test_get_cutlass_w4a8_moe_mm_data(tokens: int, topk: int, experts: int) -> Launch:
    return _grouping("get_cutlass_w4a8_moe_mm_data", tokens, topk, experts, 512, 1024, scales=False)


@case("sgl_kernel::shuffle_rows")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn", "uint8"])
@pytest.mark.parametrize(("sources", "rows", "columns"), [(1, 3, 128), (33, 264, 7168), (513, 4099, 512)])
def test_shuffle_rows(dtype: str, sources: int, rows: int, columns: int) -> Launch:
    x, out = tensors(dtype, (sources, columns), (rows, columns))
    order = integers((rows,))

    def run() -> object:
        torch.ops.sgl_kernel.shuffle_rows.default(x, order, out)
        return out.view(torch.uint8)

    def fill(seed: int) -> None:
        if dtype == "uint8":
            redraw_integers(seed, 0, 256, x)
        else:
            redraw(seed, x)
        redraw_integers(seed + 100, 0, sources, order)

    return Launch(
        run=run,
        reference=lambda: x.view(torch.uint8)[order.long()],
        redraw=fill,
        tolerance=EXACT,
    )


@case("sgl_kernel::apply_shuffle_mul_sum")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("tokens", "topk", "hidden"), [(33, 6, 1028), (513, 8, 2048)])
def test_apply_shuffle_mul_sum(dtype: str, weighted: bool, tokens: int, topk: int, hidden: int) -> Launch:
    # A row must be a multiple of 16 bytes: 1028 elements of two bytes are not, and their vectors would be misaligned.
    hidden = hidden if dtype == "float32" else (hidden + 7) // 8 * 8
    x, out = tensors(dtype, (tokens * topk, hidden), (tokens, hidden))
    factors = tensors(dtype, (tokens * topk,))[0] if weighted else None
    order = integers((tokens * topk,))

    def run() -> object:
        torch.ops.sgl_kernel.apply_shuffle_mul_sum.default(x, out, order, factors)
        return out

    def fill(seed: int) -> None:
        redraw(seed, x)
        if factors is not None:
            redraw(seed + 100, factors)
        redraw_distinct(seed + 200, tokens * topk, order)

    return Launch(
        run=run,
        reference=lambda: references.shuffle_multiply_sum(x, order, factors, tokens),
        redraw=fill,
        tolerance=rounding(dtype, float32_steps=16, scale=8, source="float32 products and sum, one rounding"),
    )
