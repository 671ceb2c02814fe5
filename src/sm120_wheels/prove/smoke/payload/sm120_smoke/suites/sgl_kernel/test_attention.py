"""What goes around attention: merging of partial results, and the index lists of sparse patterns."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import integers, redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import attention as references
from sm120_smoke.tolerance import FAST_STEPS, UNIT, rounding


@case("sgl_kernel::merge_state_v2")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("tokens", "heads", "head_size"), [(1, 1, 64), (37, 5, 40), (513, 16, 128), (4099, 2, 256)])
def test_merge_state_v2(dtype: str, tokens: int, heads: int, head_size: int) -> Launch:
    shape = (tokens, heads, head_size)
    first, second, out = tensors(dtype, shape, shape, shape)
    first_sum, second_sum, out_sum = tensors("float32", shape[:2], shape[:2], shape[:2])

    def run() -> object:
        torch.ops.sgl_kernel.merge_state_v2.default(first, first_sum, second, second_sum, out, out_sum)
        return out, out_sum

    def fill(seed: int) -> None:
        redraw(seed, first, second)
        redraw(seed + 100, first_sum, second_sum, scale=4.0)
        second_sum[0] = float("inf")  # the kernel takes it for a part that saw no key
        first_sum[-1, 0] = float("-inf") if tokens > 1 else 0.0

    return Launch(
        run=run,
        reference=lambda: references.merge_states(first, first_sum, second, second_sum),
        redraw=fill,
        tolerance=(
            rounding(dtype, float32_steps=FAST_STEPS, scale=5, source="float32 exp and division (fast), products"),
            Tolerance(
                relative=16 * UNIT["float32"],
                absolute=FAST_STEPS * UNIT["float32"],
                source="float32 exp and log (fast)",
            ),
        ),
    )


def _patterns(seed: int, vertical: Any, slash: Any, context: int, slash_counts: list[int]) -> None:
    """Vertical columns rising and slash offsets falling to 0 (the diagonal), without repeats: what the callers give."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for tensor, descending in ((vertical, False), (slash, True)):
        keys = torch.rand((*tensor.shape[:-1], context), generator=generator, device="cuda")
        chosen = keys.argsort(dim=-1)[..., : tensor.shape[-1]].sort(dim=-1, descending=descending).values
        tensor.copy_(chosen.int())
    for head, count in enumerate(slash_counts):
        slash[:, head, count - 1 :] = 0


@case("sgl_kernel::convert_vertical_slash_indexes")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("batch", "heads", "context"), [(1, 1, 130), (2, 4, 1024)])
def test_convert_vertical_slash_indexes(causal: bool, batch: int, heads: int, context: int) -> Launch:
    return _sparse(batch, heads, context, causal=causal, merged=False)


@case("sgl_kernel::convert_vertical_slash_indexes_mergehead")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("batch", "heads", "context"), [(1, 2, 130), (2, 4, 1024)])
def test_convert_vertical_slash_indexes_mergehead(causal: bool, batch: int, heads: int, context: int) -> Launch:
    return _sparse(batch, heads, context, causal=causal, merged=True)


def _sparse(batch: int, heads: int, context: int, *, causal: bool, merged: bool) -> Launch:
    block, verticals, slashes = 64, 24, 12
    rows, width = (context + block - 1) // block, context + 4 * block
    vertical, slash = integers((batch, heads, verticals)), integers((batch, heads, slashes))
    lengths = torch.tensor([context - 17 * i for i in range(batch)], dtype=torch.int32, device="cuda")
    vertical_counts = [verticals - 3 * (i % 3) * merged for i in range(heads)]
    slash_counts = [slashes - 2 * (i % 2) * merged for i in range(heads)]
    counts = [torch.tensor(values, dtype=torch.int32, device="cuda") for values in (vertical_counts, slash_counts)]
    outputs = (
        integers((batch, heads, rows)),
        integers((batch, heads, rows, slashes)),
        integers((batch, heads, rows)),
        integers((batch, heads, rows, verticals)),
    )

    def expected() -> tuple[Any, Any]:
        return references.wanted(vertical, slash, lengths, rows, block, counts, width, causal=causal)

    def run() -> object:
        for out in outputs:
            out.zero_()
        if merged:
            torch.ops.sgl_kernel.convert_vertical_slash_indexes_mergehead.default(
                *outputs, lengths, lengths, vertical, slash, *counts, context, block, block, causal
            )
        else:
            torch.ops.sgl_kernel.convert_vertical_slash_indexes.default(
                *outputs, lengths, lengths, vertical, slash, context, block, block, causal
            )
        # The lists may cover a column by a block or alone, so what is compared is the set of columns.
        must, may = expected()
        got = references.reached(outputs, block, width)
        return (got & must).int(), (got & ~may).int()

    def reference() -> object:
        must = expected()[0].int()
        return must, torch.zeros_like(must)

    return Launch(
        run=run,
        reference=reference,
        redraw=lambda seed: _patterns(seed, vertical, slash, context, slash_counts),
        tolerance=EXACT,
    )
