"""Rotary embeddings, alone and fused with the norms of queries and keys."""

from __future__ import annotations

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import integers, mark, marks, redraw, redraw_integers, redraw_uniform, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import norm as references
from sm120_smoke.tolerance import UNIT

POSITIONS = 512


@case("sgl_kernel::rotary_embedding")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "head_size", "rotary"),
    [(37, 32, 8, 128, 128), (2051, 5, 5, 96, 32), (19, 4, 0, 128, 128)],
)
def test_rotary_embedding(
    dtype: str, neox: bool, tokens: int, heads: int, kv_heads: int, head_size: int, rotary: int
) -> Launch:
    query, cache = tensors(dtype, (tokens, heads * head_size), (POSITIONS, rotary))
    key = tensors(dtype, (tokens, kv_heads * head_size))[0] if kv_heads else None
    positions = integers((tokens,), "int64")
    changed = (query,) if key is None else (query, key)

    def run() -> object:
        torch.ops.sgl_kernel.rotary_embedding.default(positions, query, key, head_size, cache, neox)
        return changed

    def fill(seed: int) -> None:
        redraw(seed, *changed)
        redraw_uniform(seed + 100, -1.0, 1.0, cache)
        redraw_integers(seed, 0, POSITIONS, positions)

    return Launch(
        run=run,
        reference=lambda: tuple(
            references.rotary_embedding(positions, x, head_size, cache, neox=neox) for x in changed
        ),
        redraw=fill,
        tolerance=Tolerance(
            relative=UNIT[dtype],
            absolute=2 * UNIT[dtype] * 6,
            source="computed in the dtype: two products of at most 6 (a normal value) rounded, their sum rounded",
        ),
    )


@case("sgl_kernel::rotary_embedding")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("by_heads", [True, False])
def test_rotary_embedding_of_a_fused_projection(dtype: str, neox: bool, by_heads: bool) -> Launch:
    """Queries, keys and values side by side. ``by_heads``: three dimensions, and heads that lie apart as well."""
    tokens, heads, kv_heads, size, padding = 37, 6, 2, 128, 64 if by_heads else 0
    (whole,) = tensors(dtype, (tokens, heads + 2 * kv_heads, size + padding))
    used, values = whole[:, : heads + kv_heads, :size], whole[:, heads + kv_heads :]
    parts = used.split((heads, kv_heads), dim=1)
    changed = parts if by_heads else tuple(part.flatten(1) for part in parts)
    aside = (values, whole[:, : heads + kv_heads, size:]) if padding else (values,)
    (cache,) = tensors(dtype, (POSITIONS, 64))
    positions = integers((tokens,), "int64")

    def run() -> object:
        torch.ops.sgl_kernel.rotary_embedding.default(positions, *changed, size, cache, neox)
        return *changed, *aside

    def fill(seed: int) -> None:
        redraw(seed, *changed)
        mark(*aside)
        redraw_uniform(seed + 100, -1.0, 1.0, cache)
        redraw_integers(seed, 0, POSITIONS, positions)

    def reference() -> object:
        turned = [references.rotary_embedding(positions, x, size, cache, neox=neox) for x in changed]
        return *turned, *marks(*aside)

    rounded = Tolerance(
        relative=UNIT[dtype],
        absolute=2 * UNIT[dtype] * 6,
        source="computed in the dtype: two products of at most 6 (a normal value) rounded, their sum rounded",
    )
    return Launch(run=run, reference=reference, redraw=fill, tolerance=(rounded, rounded, *[EXACT] * len(aside)))


@case("sgl_kernel::fused_qk_norm_rope")
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim", "rotary", "factor"),
    [
        (1, (1, 1, 1), 64, 64, 1.0),
        (37, (32, 8, 8), 128, 128, 1.0),
        (129, (4, 2, 2), 256, 256, 1.0),
        (2051, (8, 1, 1), 128, 64, 1.0),
        (33, (6, 2, 2), 128, 128, 8.0),
    ],
)
def test_fused_qk_norm_rope(
    neox: bool, tokens: int, heads: tuple[int, int, int], head_dim: int, rotary: int, factor: float
) -> Launch:
    qkv, query_weight, key_weight = tensors("bfloat16", (tokens, sum(heads) * head_dim), (head_dim,), (head_dim,))
    positions = integers((tokens,))
    base, eps, low, high, gain = 10000.0, 1e-6, 8.0, 24.0, 1.25

    def run() -> object:
        torch.ops.sgl_kernel.fused_qk_norm_rope.default(
            qkv,
            *heads,
            head_dim,
            eps,
            query_weight,
            key_weight,
            base,
            neox,
            positions,
            factor,
            low,
            high,
            gain,
            rotary,
        )
        return qkv

    def fill(seed: int) -> None:
        redraw(seed, qkv, query_weight, key_weight)
        redraw_integers(seed + 100, 0, 300, positions)

    return Launch(
        run=run,
        reference=lambda: references.fused_qk_norm_rope(
            qkv,
            heads,
            (query_weight, key_weight),
            eps,
            positions,
            references.yarn_frequencies(base, rotary, factor, low, high),
            neox=neox,
            gain=gain,
        ),
        redraw=fill,
        tolerance=Tolerance(
            relative=2 * UNIT["bfloat16"],
            absolute=2.0**-14 * 40,
            source="sin.approx and cos.approx are within 2^-14.7 up to 100 pi (CUDA C++ Programming Guide, intrinsic "
            "functions), times products of two normal values (at most 20); one rounding to bfloat16",
        ),
    )
