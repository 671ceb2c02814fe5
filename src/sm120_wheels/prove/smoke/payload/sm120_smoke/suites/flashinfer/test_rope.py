"""flashinfer's rotary embeddings."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import Apart, mark, marks, redraw, redraw_integers, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import flashinfer_math as math
from sm120_smoke.suites.flashinfer.paging import Paged
from sm120_smoke.tolerance import UNIT, rounding

DTYPES = ["float16", "bfloat16"]
DIM, Q_HEADS, K_HEADS, POSITIONS = 128, 6, 2, 512
#: Segments of a ragged batch, one of them of no token, and at which position each begins.
SEGMENTS, OFFSETS = (1, 37, 0, 90), (0, 200, 5, 11)
_CACHE = rounding("float32", float32_steps=16, scale=4.0, source="two float32 products and a sum")


def _angles(dtype: str) -> Tolerance:
    """Angles up to 512 in float32 (2**-15 rad), computed from an approximate power, on values up to about 5."""
    source = "float32 angles up to 512: 2**-15 rad, a few times for the approximate power, on values about 4"
    return Tolerance(absolute=2.0**-9 + UNIT[dtype] * 4, relative=2 * UNIT[dtype], source=source)


def _turned(x: Any, positions: Any, rotary: int, interleave: bool, *, llama31: bool) -> Any:
    theta, scale = (5e5, 8.0) if llama31 else (1e4, 1.0)
    angles = positions.double()[:, None] * math.frequencies(rotary, theta=theta, scale=scale, llama31=llama31).cuda()
    return math.rotate(x, angles.cos(), angles.sin(), interleave=interleave).to(x.dtype)


def _q_and_k(dtype: str, tokens: int) -> tuple[Any, Any]:
    q, k = tensors(dtype, (tokens, Q_HEADS, DIM), (tokens, K_HEADS, DIM))
    return q, k


@case("flashinfer.rope::{name}")
@pytest.mark.parametrize("name", ["apply_rope", "apply_llama31_rope"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rotary", "interleave"), [(DIM, False), (DIM, True), (64, False)])
def test_ragged(name: str, dtype: str, rotary: int, interleave: bool) -> Launch:
    import flashinfer

    q, k = _q_and_k(dtype, sum(SEGMENTS))
    indptr, offsets, positions = _segments()
    function, llama31 = getattr(flashinfer, name), "llama31" in name

    def reference() -> list[Any]:
        return [_turned(x, positions, rotary, interleave, llama31=llama31) for x in (q, k)]

    return Launch(
        run=lambda: function(q, k, indptr, offsets, rotary_dim=rotary, interleave=interleave),
        reference=reference,
        redraw=lambda seed: redraw(seed, q, k),
        tolerance=_angles(dtype),
    )


def _segments() -> tuple[Any, Any, Any]:
    """Where each segment of the batch begins, its first position, and the positions of all tokens."""
    starts = [sum(SEGMENTS[:i]) for i in range(len(SEGMENTS) + 1)]
    indptr, offsets = (torch.tensor(values, dtype=torch.int32, device="cuda") for values in (starts, OFFSETS))
    positions = [o + i for n, o in zip(SEGMENTS, OFFSETS, strict=True) for i in range(n)]
    return indptr, offsets, torch.tensor(positions, dtype=torch.int32, device="cuda")


@case("flashinfer.rope::{name}")
@pytest.mark.parametrize("name", ["apply_rope", "apply_llama31_rope"])
def test_ragged_of_no_token(name: str) -> Launch:
    """A batch whose requests are all empty: there are blocks, one for each request and head."""
    import flashinfer

    q, k = _q_and_k("bfloat16", 0)
    indptr, offsets = (torch.zeros(size, dtype=torch.int32, device="cuda") for size in (4, 3))
    return Launch(
        run=lambda: getattr(flashinfer, name)(q, k, indptr, offsets),
        reference=lambda: [q.clone(), k.clone()],
        redraw=lambda seed: None,
        tolerance=EXACT,
        empty=True,
    )


class _Fused:
    """Queries, keys and values side by side, as one projection gives them: heads ``padding`` elements apart."""

    def __init__(self, dtype: str, tokens: int, padding: int) -> None:
        whole = Apart(dtype, (tokens, Q_HEADS + 2 * K_HEADS, DIM), padding)
        self.q, self.k, values = whole.rows.split((Q_HEADS, K_HEADS, K_HEADS), dim=1)
        self.aside = [values, whole.padding] if padding else [values]

    def redraw(self, seed: int) -> None:
        redraw(seed, self.q, self.k)
        mark(*self.aside)


@case("flashinfer.rope::{name}")
@pytest.mark.parametrize(
    "name", ["apply_rope", "apply_llama31_rope", "apply_rope_pos_ids", "apply_llama31_rope_pos_ids"]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleave", [False, True])
def test_of_a_fused_projection_in_place(name: str, dtype: str, interleave: bool) -> Launch:
    import flashinfer

    fused, (indptr, offsets, positions) = _Fused(dtype, sum(SEGMENTS), 64), _segments()
    where = (positions,) if name.endswith("pos_ids") else (indptr, offsets)
    function, llama31 = getattr(flashinfer, f"{name}_inplace"), "llama31" in name

    def run() -> list[Any]:
        function(fused.q, fused.k, *where, interleave=interleave)
        return [fused.q, fused.k, *fused.aside]

    def reference() -> list[Any]:
        turned = [_turned(x, positions, DIM, interleave, llama31=llama31) for x in (fused.q, fused.k)]
        return [*turned, *marks(*fused.aside)]

    tolerance = [*[_angles(dtype)] * 2, *[EXACT] * len(fused.aside)]
    return Launch(run=run, reference=reference, redraw=fused.redraw, tolerance=tolerance)


@case("flashinfer.rope::{name}")
@pytest.mark.parametrize("name", ["apply_rope_pos_ids", "apply_llama31_rope_pos_ids"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rotary", "interleave", "tokens"), [(DIM, False, 1), (DIM, True, 333), (64, False, 4099)])
def test_positions(name: str, dtype: str, rotary: int, interleave: bool, tokens: int) -> Launch:
    import flashinfer

    q, k = _q_and_k(dtype, tokens)
    positions = torch.empty(tokens, dtype=torch.int32, device="cuda")
    function, llama31 = getattr(flashinfer, name), "llama31" in name

    def draw(seed: int) -> None:
        redraw(seed, q, k)
        redraw_integers(seed, 0, POSITIONS, positions)

    def reference() -> list[Any]:
        return [_turned(x, positions, rotary, interleave, llama31=llama31) for x in (q, k)]

    return Launch(
        run=lambda: function(q, k, positions, rotary_dim=rotary, interleave=interleave),
        reference=reference,
        redraw=draw,
        tolerance=_angles(dtype),
    )


class _Table:
    """Cosines and sines for each position, as flashinfer wants them: cosines first, float32."""

    def __init__(self, rotary: int) -> None:
        angles = torch.arange(POSITIONS, dtype=torch.float64)[:, None] * math.frequencies(rotary, theta=1e4, scale=1.0)
        self.half = rotary // 2
        self.values = torch.cat([angles.cos(), angles.sin()], dim=1).float().cuda()

    def turn(self, x: Any, positions: Any, *, neox: bool) -> Any:
        """In float64."""
        rows = self.values[positions.long()]
        return math.rotate(x, rows[:, : self.half], rows[:, self.half :], interleave=not neox)


@case("flashinfer.rope::apply_rope_pos_ids_cos_sin_cache")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("rotary", "tokens"), [(DIM, 1), (64, 333), (DIM, 4099)])
def test_table(dtype: str, neox: bool, rotary: int, tokens: int) -> Launch:
    import flashinfer

    table = _Table(rotary)
    q, k = _q_and_k(dtype, tokens)
    positions = torch.empty(tokens, dtype=torch.int64, device="cuda")

    def draw(seed: int) -> None:
        redraw(seed, q, k)
        redraw_integers(seed, 0, POSITIONS, positions)

    def run() -> Any:
        flat = [x.view(tokens, -1) for x in (q, k)]
        return flashinfer.apply_rope_with_cos_sin_cache(positions, *flat, DIM, table.values, is_neox=neox)

    return Launch(
        run=run,
        reference=lambda: [table.turn(x, positions, neox=neox).to(x.dtype).view(tokens, -1) for x in (q, k)],
        redraw=draw,
        tolerance=rounding(dtype, roundings=2, float32_steps=16, scale=4.0, source=_CACHE.source),
    )


@case("flashinfer.rope::apply_rope_pos_ids_cos_sin_cache")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neox", [True, False])
def test_table_of_a_fused_projection_in_place(dtype: str, neox: bool) -> Launch:
    import flashinfer

    table, tokens = _Table(DIM), 333
    fused, positions = _Fused(dtype, tokens, 0), torch.empty(tokens, dtype=torch.int64, device="cuda")
    flat = [x.flatten(1) for x in (fused.q, fused.k)]

    def draw(seed: int) -> None:
        fused.redraw(seed)
        redraw_integers(seed, 0, POSITIONS, positions)

    def run() -> list[Any]:
        flashinfer.apply_rope_with_cos_sin_cache_inplace(positions, *flat, DIM, table.values, is_neox=neox)
        return [*flat, *fused.aside]

    def reference() -> list[Any]:
        turned = [table.turn(x, positions, neox=neox).to(x.dtype).flatten(1) for x in (fused.q, fused.k)]
        return [*turned, *marks(*fused.aside)]

    rounded = rounding(dtype, roundings=2, float32_steps=16, scale=4.0, source=_CACHE.source)
    return Launch(run=run, reference=reference, redraw=draw, tolerance=[rounded, rounded, EXACT])


def _fp8() -> Tolerance:
    unit = UNIT["float8_e4m3fn"]
    source = "float32 noise beside a tie rounds to the neighbour: one step of e4m3"
    return Tolerance(relative=2.5 * unit, absolute=2.0**-8, source=source)


@case("flashinfer.rope::rope_quantize", "flashinfer.rope::rope_set_launch_override")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("latent", [True, False])
@pytest.mark.parametrize("tokens", [1, 300])
def test_rope_quantize(dtype: str, neox: bool, latent: bool, tokens: int) -> Launch:
    """``latent``: one key without heads, as in MLA."""
    import flashinfer

    table, rope, rest = _Table(64), 64, 512 if latent else 64
    k_heads = () if latent else (K_HEADS,)
    q_rope, k_rope = tensors(dtype, (tokens, Q_HEADS, rope), (tokens, *k_heads, rope))
    q_rest, k_rest = tensors(dtype, (tokens, Q_HEADS, rest), (tokens, *k_heads, rest))
    positions = torch.empty(tokens, dtype=torch.int32, device="cuda")

    def draw(seed: int) -> None:
        redraw(seed, q_rope, k_rope, q_rest, k_rest)
        redraw_integers(seed, 0, POSITIONS, positions)

    def run() -> Any:
        flashinfer.rope._set_rope_launch_override(two_heads=True)
        try:
            return flashinfer.rope.rope_quantize_fp8(
                q_rope,
                k_rope,
                q_rest,
                k_rest,
                table.values,
                positions,
                is_neox=neox,
                quant_scale_q=2.0,
                quant_scale_kv=0.5,
            )
        finally:
            flashinfer.rope._set_rope_launch_override()

    def reference() -> list[Any]:
        k = k_rope.unsqueeze(1) if latent else k_rope
        turned = [table.turn(q_rope, positions, neox=neox), table.turn(k, positions, neox=neox).view_as(k_rope)]
        pairs = [(turned[0], 2.0), (turned[1], 0.5), (q_rest.double(), 2.0), (k_rest.double(), 0.5)]
        return [math.to_fp8(values * scale, torch.float8_e4m3fn) for values, scale in pairs]

    return Launch(run=run, reference=reference, redraw=draw, tolerance=_fp8())


@case("flashinfer.rope::rope_quantize")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("latent", [True, False])
def test_rope_quantize_of_joined_heads(dtype: str, latent: bool) -> Launch:
    """Parts of a head that are rotated and not lie side by side, before and after, and heads lie apart."""
    import flashinfer

    table, tokens, rest = _Table(64), 37, 512 if latent else 64
    shapes = [(tokens, Q_HEADS, rest + 64), (tokens, *(() if latent else (K_HEADS,)), rest + 64)]
    q, k = (Apart(dtype, shape, 32) for shape in shapes)
    q_out, k_out = (Apart("float8_e4m3fn", shape, 64) for shape in shapes)
    aside = [each.padding for each in (q, k, q_out, k_out)]
    positions = torch.empty(tokens, dtype=torch.int32, device="cuda")

    def draw(seed: int) -> None:
        redraw(seed, q.rows, k.rows)
        mark(*aside)
        redraw_integers(seed, 0, POSITIONS, positions)

    def run() -> list[Any]:
        flashinfer.rope.rope_quantize_fp8(
            q.rows[..., rest:],
            k.rows[..., rest:],
            q.rows[..., :rest],
            k.rows[..., :rest],
            table.values,
            positions,
            is_neox=False,
            quant_scale_q=2.0,
            quant_scale_kv=0.5,
            q_rope_out=q_out.rows[..., rest:],
            k_rope_out=k_out.rows[..., rest:],
            q_nope_out=q_out.rows[..., :rest],
            k_nope_out=k_out.rows[..., :rest],
        )
        return [q_out.rows, k_out.rows, *aside]

    def reference() -> list[Any]:
        results = []
        for x, scale in ((q.rows, 2.0), (k.rows, 0.5)):
            heads = x if x.dim() == 3 else x.unsqueeze(1)
            turned = table.turn(heads[..., rest:], positions, neox=False)
            whole = torch.cat([heads[..., :rest].double(), turned], dim=-1) * scale
            results.append(math.to_fp8(whole, torch.float8_e4m3fn).view(x.shape))
        return [*results, *marks(*aside)]

    tolerance = [_fp8(), _fp8(), *[EXACT] * len(aside)]
    return Launch(run=run, reference=reference, redraw=draw, tolerance=tolerance)


@case("flashinfer.rope::rope_quantize_append_paged_kv_cache")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "fused"), [("NHD", False), ("HND", False), ("NHD", True)])
def test_rope_quantize_append(dtype: str, layout: str, fused: bool) -> Launch:
    """``fused``: queries, keys and values lie side by side."""
    import flashinfer

    table, paged, dim = _Table(64), Paged((45, 8, 25), 16), 64
    inner = (16, K_HEADS) if layout == "NHD" else (K_HEADS, 16)
    k_cache, v_cache, first_k, first_v = tensors("float8_e4m3fn", *[(paged.pages, *inner, dim)] * 4)
    q, k, v = tensors(dtype, (paged.tokens, Q_HEADS, dim), *[(paged.tokens, K_HEADS, dim)] * 2)
    if fused:
        whole = tensors(dtype, (paged.tokens, Q_HEADS + 2 * K_HEADS, dim))[0]
        q, k, v = whole.split((Q_HEADS, K_HEADS, K_HEADS), dim=1)

    def run() -> list[Any]:
        k_cache.copy_(first_k)
        v_cache.copy_(first_v)
        q_out, _ = flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
            q,
            k,
            None,
            None,
            v,
            table.values,
            paged.positions,
            (k_cache, v_cache),
            paged.indices,
            paged.indptr,
            paged.batch_indices,
            paged.positions,
            quant_scale_q=2.0,
            quant_scale_kv=0.5,
            page_size=16,
            kv_layout=layout,
        )
        return [q_out, k_cache, v_cache]

    def reference() -> list[Any]:
        fp8 = torch.float8_e4m3fn
        turned_q = math.to_fp8(table.turn(q, paged.positions, neox=True) * 2.0, fp8)
        turned_k = math.to_fp8(table.turn(k, paged.positions, neox=True) * 0.5, fp8)
        values = math.to_fp8(v.double() * 0.5, fp8)
        return [turned_q, paged.put(first_k, turned_k, layout=layout), paged.put(first_v, values, layout=layout)]

    return Launch(
        run=run,
        reference=reference,
        redraw=lambda seed: redraw(seed, q, k, v, first_k, first_v),
        tolerance=_fp8(),
    )
