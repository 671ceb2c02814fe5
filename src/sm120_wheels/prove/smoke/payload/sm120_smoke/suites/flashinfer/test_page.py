"""flashinfer's appends to a paged cache."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.suites.flashinfer.paging import Paged

DTYPES = ["float16", "bfloat16"]
BATCHES = [((1,), 1), ((45, 8, 25, 22), 16), ((1, 130, 7), 5)]


@case("flashinfer.page::append_paged_kv_cache")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("lengths", "page_size"), BATCHES)
def test_append_paged_kv_cache(dtype: str, layout: str, lengths: tuple[int, ...], page_size: int) -> Launch:
    import flashinfer

    paged, heads, dim = Paged(lengths, page_size), 3, 128
    inner = (page_size, heads) if layout == "NHD" else (heads, page_size)
    k_cache, v_cache, first_k, first_v = tensors(dtype, *[(paged.pages, *inner, dim)] * 4)
    k, v = tensors(dtype, *[(paged.tokens, heads, dim)] * 2)

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
        redraw=lambda seed: redraw(seed, k, v, first_k, first_v),
        tolerance=EXACT,
    )


@case("flashinfer.page::append_paged_mla_kv_cache")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lengths", "page_size"), BATCHES)
def test_append_paged_mla_kv_cache(dtype: str, lengths: tuple[int, ...], page_size: int) -> Launch:
    import flashinfer

    paged = Paged(lengths, page_size)
    ckv_cache, first_ckv = tensors(dtype, *[(paged.pages, page_size, 512)] * 2)
    kpe_cache, first_kpe = tensors(dtype, *[(paged.pages, page_size, 64)] * 2)
    ckv, kpe = tensors(dtype, (paged.tokens, 512), (paged.tokens, 64))

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
        return [ckv_cache, kpe_cache]

    return Launch(
        run=run,
        reference=lambda: [paged.put(first_ckv, ckv), paged.put(first_kpe, kpe)],
        redraw=lambda seed: redraw(seed, ckv, kpe, first_ckv, first_kpe),
        tolerance=EXACT,
    )
