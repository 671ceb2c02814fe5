"""Renormalisation of probabilities, from flashinfer, and the mask of a grammar."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import integers, redraw, redraw_bytes, redraw_integers, redraw_uniform, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import sampling as references
from sm120_smoke.tolerance import UNIT

SHAPES = [(1, 111), (33, 4099), (7, 32000), (3, 128256)]


def _renormalized(probabilities_exact: bool) -> Tolerance:
    return Tolerance(
        relative=(8 if probabilities_exact else 64) * UNIT["float32"],
        source="float32 sum (exact where probabilities are multiples of 2^-20), rcp.approx (1 ulp), one product",
    )


@case("sgl_kernel::top_k_renorm_probs")
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("rows", "vocabulary"), SHAPES)
def test_top_k_renorm_probs(each: bool, rows: int, vocabulary: int) -> Launch:
    probabilities, out = tensors("float32", (rows, vocabulary), (rows, vocabulary))
    counts = integers((rows,)) if each else None
    k = 17

    def run() -> object:
        torch.ops.sgl_kernel.top_k_renorm_probs.default(probabilities, out, counts, k)
        return out

    def fill(seed: int) -> None:
        redraw(seed, probabilities)
        probabilities.copy_(torch.softmax(probabilities, dim=-1))
        if counts is not None:
            redraw_integers(seed + 100, 1, vocabulary + 10, counts)

    return Launch(
        run=run,
        reference=lambda: references.top_k_renormalize(probabilities, k if counts is None else counts),
        redraw=fill,
        tolerance=_renormalized(False),
    )


@case("sgl_kernel::top_p_renorm_probs")
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("rows", "vocabulary"), SHAPES)
def test_top_p_renorm_probs(each: bool, rows: int, vocabulary: int) -> Launch:
    probabilities, out = tensors("float32", (rows, vocabulary), (rows, vocabulary))
    shares = tensors("float32", (rows,))[0] if each else None
    p = 0.9

    def run() -> object:
        torch.ops.sgl_kernel.top_p_renorm_probs.default(probabilities, out, shares, p)
        return out

    def fill(seed: int) -> None:
        redraw(seed, probabilities, scale=3.0)
        probabilities.copy_(references.exact_probabilities(probabilities))
        if shares is not None:
            redraw_uniform(seed + 100, 0.05, 1.0, shares)
            shares[-1] = 1.0

    return Launch(
        run=run,
        reference=lambda: references.top_p_renormalize(probabilities, p if shares is None else shares),
        redraw=fill,
        tolerance=_renormalized(True),
    )


def _bits(tensor: Any) -> Any:
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


@case("sgl_kernel::apply_token_bitmask_inplace_cuda")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("rows", "vocabulary", "some"),
    [(1, 128, False), (1, 32001, False), (33, 128256, True), (130, 4099, True), (2, 151936, False)],
)
def test_apply_token_bitmask_inplace_cuda(dtype: str, rows: int, vocabulary: int, some: bool) -> Launch:
    (logits,) = tensors(dtype, (rows, vocabulary))
    mask = integers((rows, (vocabulary + 31) // 32))
    chosen = torch.arange(0, rows, 2, dtype=torch.int32, device="cuda") if some else None

    def run() -> object:
        torch.ops.sgl_kernel.apply_token_bitmask_inplace_cuda.default(logits, mask, chosen)
        return _bits(logits)

    def fill(seed: int) -> None:
        redraw(seed, logits)
        redraw_bytes(seed + 100, mask)

    return Launch(
        run=run,
        reference=lambda: _bits(references.masked_logits(logits, mask, chosen)),
        redraw=fill,
        tolerance=EXACT,
    )
