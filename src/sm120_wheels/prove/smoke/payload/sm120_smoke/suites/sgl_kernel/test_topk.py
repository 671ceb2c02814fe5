"""The choice of the 2048 highest-scoring keys of DeepSeek-V3.2's sparse attention, alone and with page tables."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, case
from sm120_smoke.draw import Apart, integers, mark, redraw_integers, redraw_ranks
from sm120_smoke.lazy import torch

TOPK = 2048
SHAPES = [(1, 2049), (3, 5003), (65, 4096), (17, 20000)]
"""Rows and length. A row shorter than 2048 keeps all its keys."""


def _lengths(rows: int, length: int) -> Any:
    """The full length, half of it, one of a few keys, and none."""
    return torch.tensor([(length, length // 2, 5, 0)[i % 4] for i in range(rows)], dtype=torch.int32, device="cuda")


def _best(score: Any, starts: Any, lengths: Any) -> Any:
    """Indices of the best within each row's part, from its start; the first ones where it has no more; -1 to fill."""
    rows, width = score.shape
    first = torch.zeros_like(lengths) if starts is None else starts
    column = torch.arange(width, device=score.device)
    place = column[None, :] - first[:, None]
    inside = (place >= 0) & (place < lengths[:, None])
    hidden = score.masked_fill(~inside, float("-inf"))
    count = min(TOPK, width)
    chosen = hidden.topk(count, dim=-1).indices - first[:, None].long()
    whole = torch.arange(TOPK, device=score.device).expand(rows, TOPK)
    whole = torch.where(whole < lengths[:, None], whole, torch.full_like(whole, -1))
    result = whole.clone()
    long = lengths > TOPK
    result[long] = chosen[long] if count == TOPK else result[long]
    return result


def _ordered(indices: Any) -> Any:
    """Free order: the kernel gathers the chosen ones with atomic counters."""
    return indices.long().sort(dim=-1).values


def _drawn(rows: int, length: int, parts: bool, *, apart: bool) -> tuple[Any, Any, Any]:
    """``apart``: rows of a wider tensor; between them lie scores that are better than all others."""
    whole = Apart("float32", (rows, length + (7 if parts else 0)), 9 if apart else 0)
    mark(whole.padding)
    starts = integers((rows,)) if parts else None
    return whole.rows, starts, _lengths(rows, length)


@case("sgl_kernel::fast_topk")
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize(("rows", "length"), SHAPES)
def test_fast_topk(rows: int, length: int, parts: bool) -> Launch:
    score, starts, lengths = _drawn(rows, length, parts, apart=parts)
    out = integers((rows, TOPK))

    def run() -> object:
        torch.ops.sgl_kernel.fast_topk.default(score, out, lengths, starts)
        return _ordered(out)

    def fill(seed: int) -> None:
        redraw_ranks(seed, 2.0**-8, score)
        if starts is not None:
            redraw_integers(seed + 100, 0, 8, starts)

    return Launch(run=run, reference=lambda: _ordered(_best(score, starts, lengths)), redraw=fill, tolerance=EXACT)


@case("sgl_kernel::fast_topk_transform_fused")
@pytest.mark.parametrize("form", ["decode", "verify", "extend"])
@pytest.mark.parametrize(("rows", "length"), SHAPES)
def test_fast_topk_transform_fused(rows: int, length: int, form: str) -> Launch:
    """``decode``: a page table for each row. ``verify``: rows share tables. ``extend``: so, and parts of a row."""
    apart = form != "verify"
    score, starts, lengths = _drawn(rows, length, form == "extend", apart=apart)
    batch = rows if form == "decode" else max(1, rows // 3)
    bounds = [i * rows // batch for i in range(batch + 1)]
    cumulative = torch.tensor(bounds, dtype=torch.int32, device="cuda")
    owner = torch.repeat_interleave(torch.arange(batch, device="cuda"), cumulative.diff().long())
    table, out = Apart("int32", (batch, score.shape[1]), 5 if apart else 0).rows, integers((rows, TOPK))

    def run() -> object:
        torch.ops.sgl_kernel.fast_topk_transform_fused.default(score, lengths, out, table, cumulative, starts)
        return _ordered(out)

    def fill(seed: int) -> None:
        redraw_ranks(seed, 2.0**-8, score)
        redraw_integers(seed + 100, 0, 1 << 30, table)
        if starts is not None:
            redraw_integers(seed + 200, 0, 8, starts)

    def reference() -> object:
        chosen = _best(score, starts, lengths)
        pages = table[owner].long().gather(-1, chosen.clamp_min(0))
        return _ordered(torch.where(chosen < 0, chosen, pages))

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT)


@case("sgl_kernel::fast_topk_transform_ragged_fused")
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize(("rows", "length"), SHAPES)
def test_fast_topk_transform_ragged_fused(rows: int, length: int, parts: bool) -> Launch:
    score, starts, lengths = _drawn(rows, length, parts, apart=parts)
    offsets, out = integers((rows,)), integers((rows, TOPK))

    def run() -> object:
        torch.ops.sgl_kernel.fast_topk_transform_ragged_fused.default(score, lengths, out, offsets, starts)
        return _ordered(out)

    def fill(seed: int) -> None:
        redraw_ranks(seed, 2.0**-8, score)
        redraw_integers(seed + 100, 0, 1 << 20, offsets)
        if starts is not None:
            redraw_integers(seed + 200, 0, 8, starts)

    def reference() -> object:
        chosen = _best(score, starts, lengths)
        return _ordered(torch.where(chosen < 0, chosen, chosen + offsets[:, None]))

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT)
