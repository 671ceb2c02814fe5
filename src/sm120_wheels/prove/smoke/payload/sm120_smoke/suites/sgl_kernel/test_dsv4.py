"""DeepSeek-V4's fused norms, rotary embeddings and quantisers. Sizes are fixed in the kernels."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import (
    Apart,
    integers,
    mark,
    marks,
    redraw,
    redraw_bytes,
    redraw_distinct,
    redraw_integers,
    redraw_uniform,
    tensors,
)
from sm120_smoke.lazy import torch
from sm120_smoke.references import dsv4 as references
from sm120_smoke.tolerance import UNIT

POSITIONS, EPS = 512, 1e-6
FLIPS = 0.004
"""Share of values that may be rounded the other way where a float32 sum in another order crosses a boundary."""


def _angles(seed: int, frequencies: Any, positions: Any) -> None:
    redraw_uniform(seed + 100, -1.0, 1.0, frequencies)
    redraw_integers(seed + 200, 0, POSITIONS, positions)


@case("sgl_kernel::dsv4_fused_q_norm_rope")
@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 1, 128), (37, 128, 192), (2051, 3, 192), (0, 3, 192)])
@pytest.mark.parametrize("padding", [0, 64])
def test_dsv4_fused_q_norm_rope(tokens: int, heads: int, head_dim: int, padding: int) -> Launch:
    given, result = (Apart("bfloat16", (tokens, heads * head_dim), each) for each in (padding, padding * 2))
    query, out = (each.rows.unflatten(-1, (heads, head_dim)) for each in (given, result))
    aside = (given.padding, result.padding) if padding else ()
    (frequencies,) = tensors("float32", (POSITIONS, 64))
    positions = integers((tokens,))

    def run() -> object:
        torch.ops.sgl_kernel.dsv4_fused_q_norm_rope.default(query, out, frequencies, positions, EPS)
        return out, *aside

    def fill(seed: int) -> None:
        redraw(seed, query)
        mark(*aside)
        _angles(seed, frequencies, positions)

    turned = Tolerance(
        relative=UNIT["bfloat16"] + 32 * UNIT["float32"],
        absolute=16 * UNIT["float32"],
        share=FLIPS,
        source="rounded to bfloat16 after the norm and again after the rotation; float32 in between",
    )
    return Launch(
        run=run,
        reference=lambda: (references.query(query, frequencies, positions, EPS), *marks(*aside)),
        redraw=fill,
        tolerance=(turned, *[EXACT] * len(aside)),
        empty=tokens == 0,
    )


@case("sgl_kernel::dsv4_fused_k_norm_rope_flashmla")
@pytest.mark.parametrize(
    ("tokens", "page", "padding"), [(1, 1, 0), (37, 64, 0), (513, 16, 0), (65, 256, 0), (37, 64, 64)]
)
def test_dsv4_fused_k_norm_rope_flashmla(tokens: int, page: int, padding: int) -> Launch:
    whole, (weight,) = Apart("bfloat16", (tokens, 512), padding), tensors("bfloat16", (512,))
    latent = whole.rows
    (frequencies,) = tensors("float32", (POSITIONS, 64))
    positions, slots = integers((tokens,)), integers((tokens,))
    pages = (tokens + page - 1) // page + 1
    # A page: 576 bytes for each token, then 8 bytes of scales for each, rounded up to a multiple of 576.
    cache = torch.zeros((pages, (584 * page + 575) // 576 * 576), dtype=torch.uint8, device="cuda")

    def run() -> object:
        cache.zero_()
        torch.ops.sgl_kernel.dsv4_fused_k_norm_rope_flashmla.default(
            latent, weight, frequencies, positions, slots, cache, EPS, page
        )
        return references.decode_cache(cache, slots, page)

    def fill(seed: int) -> None:
        redraw(seed, latent, weight)
        mark(whole.padding)
        redraw_distinct(seed + 300, pages * page, slots)
        _angles(seed, frequencies, positions)

    return Launch(
        run=run,
        reference=lambda: references.key(latent, weight, frequencies, positions, EPS),
        redraw=fill,
        tolerance=(
            Tolerance(relative=2.0**-20, share=FLIPS, source="float32, then rounded to e4m3 times a power of two"),
            Tolerance(
                relative=UNIT["bfloat16"] + 32 * UNIT["float32"],
                absolute=64 * UNIT["float32"],
                source="float32 rotation, one rounding to bfloat16",
            ),
            Tolerance(share=FLIPS, source="exponent of the largest value, rounded up: exact but at a power of two"),
        ),
    )


@case("sgl_kernel::dsv4_fused_q_indexer_rope_hadamard_quant")
@pytest.mark.parametrize(("tokens", "heads"), [(1, 1), (37, 64), (2051, 5), (0, 5)])
def test_dsv4_fused_q_indexer_rope_hadamard_quant(tokens: int, heads: int) -> Launch:
    query, weight = tensors("bfloat16", (tokens, heads, 128), (tokens, heads))
    (quantised,) = tensors("float8_e4m3fn", (tokens, heads, 128))
    frequencies, scaled = tensors("float32", (POSITIONS, 64), (tokens, heads, 1))
    positions = integers((tokens,))

    def run() -> object:
        torch.ops.sgl_kernel.dsv4_fused_q_indexer_rope_hadamard_quant.default(
            query, quantised, weight, scaled, 0.125, frequencies, positions
        )
        return quantised.float(), scaled

    def fill(seed: int) -> None:
        redraw(seed, query, weight)
        _angles(seed, frequencies, positions)

    return Launch(
        run=run,
        reference=lambda: references.indexer(query, weight, 0.125, frequencies, positions),
        redraw=fill,
        tolerance=(
            Tolerance(share=FLIPS, source="float32 sums of 128 terms in another order, then rounded to e4m3"),
            Tolerance(relative=64 * UNIT["float32"], source="the largest of such sums, three products"),
        ),
        empty=tokens == 0,
    )


@case("sgl_kernel::dsv4_fused_k_norm_rope_flashmla")
def test_dsv4_fused_k_norm_rope_flashmla_of_no_token() -> Launch:
    latent, weight = tensors("bfloat16", (0, 512), (512,))
    (frequencies,), positions, slots = tensors("float32", (POSITIONS, 64)), integers((0,)), integers((0,))
    cache = torch.zeros((2, 576 * 66), dtype=torch.uint8, device="cuda")

    def run() -> object:
        torch.ops.sgl_kernel.dsv4_fused_k_norm_rope_flashmla.default(
            latent, weight, frequencies, positions, slots, cache, EPS, 64
        )
        return cache

    def fill(seed: int) -> None:
        redraw(seed, weight, frequencies)
        redraw_bytes(seed, cache)

    return Launch(run=run, reference=lambda: cache.clone(), redraw=fill, tolerance=EXACT, empty=True)
