"""flashinfer's appends to a paged cache."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import Apart, dtype_of, mark, marks, redraw, redraw_bytes, redraw_distinct, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references.flashinfer_math import nvfp4_blocks, to_fp8
from sm120_smoke.suites.flashinfer.paging import Paged

DTYPES = ["float16", "bfloat16"]
#: Of the caches, whose scales are e4m3. No power of two: no element lies just between two codes.
K_SCALE, V_SCALE = 0.013, 0.0071
_BESIDE_A_TIE = Tolerance(
    share=0.001,
    source="bytes: one float32 division that is not rounded to nearest (-use_fast_math), 2**-22; rarely beside a tie",
)
#: Tokens of each request, the size of a page, and how far apart the rows that are appended lie.
BATCHES = [((1,), 1, 0), ((45, 8, 25, 22), 16, 0), ((1, 130, 7), 5, 0), ((45, 0, 25), 16, 64)]
NO_TOKEN = ((0, 0), 16, 0)


@case("flashinfer.page::append_paged_kv_cache")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("lengths", "page_size", "padding"), BATCHES)
def test_append_paged_kv_cache(
    dtype: str, layout: str, lengths: tuple[int, ...], page_size: int, padding: int
) -> Launch:
    """Where rows lie apart, so do keys and values in one cache."""
    import flashinfer

    paged, heads, dim = Paged(lengths, page_size), 3, 128
    inner = (page_size, heads) if layout == "NHD" else (heads, page_size)
    k_cache, v_cache, first_k, first_v = tensors(dtype, *[(paged.pages, *inner, dim)] * 4)
    if padding:
        k_cache, v_cache = tensors(dtype, (paged.pages, 2, *inner, dim))[0].unbind(1)
    wide_k, wide_v = (Apart(dtype, (paged.tokens, heads, dim), each) for each in (padding, padding * 2))
    k, v = wide_k.rows, wide_v.rows

    def run() -> list[Any]:
        k_cache.copy_(first_k)
        v_cache.copy_(first_v)
        flashinfer.append_paged_kv_cache(
            k,
            v,
            paged.batch_indices,
            paged.positions,
            (k_cache, v_cache),
            paged.indices,
            paged.indptr,
            paged.last_page_len,
            kv_layout=layout,
        )
        return [k_cache, v_cache]

    return Launch(
        run=run,
        reference=lambda: [paged.put(first_k, k, layout=layout), paged.put(first_v, v, layout=layout)],
        redraw=lambda seed: _redraw_apart(seed, (wide_k, wide_v), first_k, first_v),
        tolerance=EXACT,
    )


def _redraw_apart(seed: int, given: tuple[Apart, ...], *more: Any) -> None:
    redraw(seed, *(each.rows for each in given), *more)
    mark(*(each.padding for each in given))


@case("flashinfer.page::append_paged_mla_kv_cache")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lengths", "page_size", "padding"), BATCHES)
def test_append_paged_mla_kv_cache(dtype: str, lengths: tuple[int, ...], page_size: int, padding: int) -> Launch:
    """Where rows lie apart, so do the entries of both caches."""
    import flashinfer

    paged = Paged(lengths, page_size)
    (first_ckv,), (first_kpe,) = (tensors(dtype, (paged.pages, page_size, size)) for size in (512, 64))
    caches = [Apart(dtype, first.shape, padding) for first in (first_ckv, first_kpe)]
    ckv_cache, kpe_cache = (each.rows for each in caches)
    aside = [each.padding for each in caches] if padding else []
    wide_ckv, wide_kpe = Apart(dtype, (paged.tokens, 512), padding), Apart(dtype, (paged.tokens, 64), padding * 2)
    ckv, kpe = wide_ckv.rows, wide_kpe.rows

    def draw(seed: int) -> None:
        _redraw_apart(seed, (wide_ckv, wide_kpe), first_ckv, first_kpe)
        mark(*aside)

    def run() -> list[Any]:
        ckv_cache.copy_(first_ckv)
        kpe_cache.copy_(first_kpe)
        flashinfer.page.append_paged_mla_kv_cache(
            ckv,
            kpe,
            paged.batch_indices,
            paged.positions,
            ckv_cache,
            kpe_cache,
            paged.indices,
            paged.indptr,
            paged.last_page_len,
        )
        return [ckv_cache, kpe_cache, *aside]

    return Launch(
        run=run,
        reference=lambda: [paged.put(first_ckv, ckv), paged.put(first_kpe, kpe), *marks(*aside)],
        redraw=draw,
        tolerance=EXACT,
    )


class _Quantised:
    """A K and a V cache of e2m1 codes with their e4m3 scales, full of other bytes."""

    def __init__(self, paged: Paged, heads: int, dim: int, layout: str) -> None:
        inner = (paged.page_size, heads) if layout == "NHD" else (heads, paged.page_size)
        shapes = [(paged.pages, *inner, dim // each) for each in (2, 2, 16, 16)]
        self.layout = layout
        self.first = [torch.empty(shape, dtype=torch.uint8, device="cuda") for shape in shapes]
        self.caches = [torch.empty_like(each) for each in self.first]

    def begin(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """The caches as they are before an append: codes, scales."""
        for cache, first in zip(self.caches, self.first, strict=True):
            cache.copy_(first)
        k, v, k_scales, v_scales = self.caches
        return (k, v), (k_scales.view(torch.float8_e4m3fn), v_scales.view(torch.float8_e4m3fn))

    def expected(self, put: Any, k: Any, v: Any) -> list[Any]:
        """The bytes of all four after an append; ``put`` writes rows into a copy of a cache."""
        k_codes, k_scales = nvfp4_blocks(k, K_SCALE)
        v_codes, v_scales = nvfp4_blocks(v, V_SCALE)
        rows = (k_codes, v_codes, k_scales.view(torch.uint8), v_scales.view(torch.uint8))
        return [put(first, new) for first, new in zip(self.first, rows, strict=True)]


@case("flashinfer.page::nvfp4_quantize_append_paged_kv_cache")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "dim"), [("NHD", 128), ("HND", 128), ("NHD", 64), ("HND", 256)])
@pytest.mark.parametrize(("lengths", "page_size", "padding"), BATCHES)
def test_nvfp4_append(
    dtype: str, layout: str, dim: int, lengths: tuple[int, ...], page_size: int, padding: int
) -> Launch:
    import flashinfer

    paged, heads = Paged(lengths, page_size), 3
    quantised = _Quantised(paged, heads, dim, layout)
    wide = [Apart(dtype, (paged.tokens, heads, dim), each) for each in (padding, padding * 2)]
    k, v = (each.rows for each in wide)

    def run() -> list[Any]:
        codes, scales = quantised.begin()
        flashinfer.page.nvfp4_quantize_append_paged_kv_cache(
            k,
            v,
            paged.batch_indices,
            paged.positions,
            codes,
            scales,
            paged.indices,
            paged.indptr,
            paged.last_page_len,
            K_SCALE,
            V_SCALE,
            kv_layout=layout,
        )
        return quantised.caches

    return Launch(
        run=run,
        reference=lambda: quantised.expected(lambda first, rows: paged.put(first, rows, layout=layout), k, v),
        redraw=lambda seed: _redraw_appended(seed, quantised, *wide),
        tolerance=_BESIDE_A_TIE,
        empty=paged.tokens == 0,
    )


@case("flashinfer.page::nvfp4_quantize_append_paged_kv_cache")
def test_nvfp4_append_of_no_token() -> Launch:
    return test_nvfp4_append("bfloat16", "NHD", 128, *NO_TOKEN)


@case("flashinfer.page::nvfp4_quantize_append_paged_kv_cache_with_slot_mapping")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize(
    ("layout", "tokens", "padding"), [("NHD", 1, 0), ("NHD", 45, 0), ("HND", 130, 0), ("NHD", 45, 64)]
)
def test_nvfp4_append_by_slots(dtype: str, index: str, layout: str, tokens: int, padding: int) -> Launch:
    """More rows than slots, and slots that are padding."""
    import flashinfer

    paged, heads, dim = Paged((160,), 16), 2, 128
    quantised = _Quantised(paged, heads, dim, layout)
    wide = [Apart(dtype, (tokens + 3, heads, dim), each) for each in (padding, padding * 2)]
    k, v = (each.rows for each in wide)
    slots = torch.empty(tokens, dtype=dtype_of(index), device="cuda")
    k_scale, v_scale = (torch.tensor([scale], device="cuda") for scale in (K_SCALE, V_SCALE))

    def run() -> list[Any]:
        codes, scales = quantised.begin()
        flashinfer.page.nvfp4_quantize_append_paged_kv_cache_with_slot_mapping(
            k, v, slots, codes, scales, k_scale, v_scale, kv_layout=layout
        )
        return quantised.caches

    def put(first: Any, rows: Any) -> Any:
        copy, used = first.clone(), slots >= 0
        places = copy.transpose(1, 2) if layout == "HND" else copy
        places[slots[used].long() // 16, slots[used].long() % 16] = rows[:tokens][used]
        return copy

    def draw(seed: int) -> None:
        _redraw_appended(seed, quantised, *wide)
        redraw_distinct(seed + 1, paged.pages * 16, slots)
        slots[1::5] = -1

    return Launch(
        run=run,
        reference=lambda: quantised.expected(put, k, v),
        redraw=draw,
        tolerance=_BESIDE_A_TIE,
        empty=tokens == 0,
    )


@case("flashinfer.page::nvfp4_quantize_append_paged_kv_cache_with_slot_mapping")
def test_nvfp4_append_by_no_slot() -> Launch:
    return test_nvfp4_append_by_slots("bfloat16", "int32", "NHD", 0, 0)


def _redraw_appended(seed: int, quantised: _Quantised, k: Apart, v: Apart) -> None:
    _redraw_apart(seed, (k, v))
    k.rows[:1, :, :32] = 0  # two blocks without a scale
    redraw_bytes(seed, *quantised.first)


@case("flashinfer.page::nvfp4_quantize_append_paged_mla_kv_cache")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lengths", "page_size", "padding"), BATCHES)
def test_nvfp4_append_mla(dtype: str, lengths: tuple[int, ...], page_size: int, padding: int) -> Launch:
    import flashinfer

    paged = Paged(lengths, page_size)
    first = [torch.empty(paged.pages, page_size, n, dtype=torch.uint8, device="cuda") for n in (256, 32, 64)]
    caches = [torch.empty_like(each) for each in first]
    wide = [Apart(dtype, (paged.tokens, size), padding) for size in (512, 64)]
    ckv, kpe = (each.rows for each in wide)

    def run() -> list[Any]:
        for cache, old in zip(caches, first, strict=True):
            cache.copy_(old)
        flashinfer.page.nvfp4_quantize_append_paged_mla_kv_cache(
            ckv,
            kpe,
            paged.batch_indices,
            paged.positions,
            caches[0],
            caches[1].view(torch.float8_e4m3fn),
            caches[2].view(torch.float8_e4m3fn),
            paged.indices,
            paged.indptr,
            paged.last_page_len,
            K_SCALE,
            V_SCALE,
        )
        return caches

    def reference() -> list[Any]:
        codes, scales = nvfp4_blocks(ckv, K_SCALE)
        inverse = 1.0 / torch.tensor(V_SCALE, dtype=torch.float32, device="cuda")
        rope = to_fp8(kpe.float() * inverse, torch.float8_e4m3fn)
        rows = (codes, scales.view(torch.uint8), rope.view(torch.uint8))
        return [paged.put(old, new) for old, new in zip(first, rows, strict=True)]

    def draw(seed: int) -> None:
        _redraw_apart(seed, tuple(wide))
        ckv[:1, :32] = 0
        redraw_bytes(seed, *first)

    return Launch(run=run, reference=reference, redraw=draw, tolerance=EXACT, empty=paged.tokens == 0)


@case("flashinfer.page::nvfp4_quantize_append_paged_mla_kv_cache")
def test_nvfp4_append_mla_of_no_token() -> Launch:
    return test_nvfp4_append_mla("bfloat16", *NO_TOKEN)
