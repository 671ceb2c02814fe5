"""Merging of partial attention, and the blocks of vertical-and-slash sparse patterns."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch


def merge_states(first: Any, first_sum: Any, second: Any, second_sum: Any) -> tuple[Any, Any]:
    """Two partial results weighted by the exponentials of their log-sum-exps; an infinite one counts as no part.

    Section 2.2 of arXiv 2501.01005. Returns the merged result and its log-sum-exp.
    """
    sums = torch.stack((first_sum, second_sum)).double()
    sums = sums.masked_fill(sums.isinf(), float("-inf"))
    weights = torch.softmax(sums, dim=0)[..., None]
    return weights[0] * first.double() + weights[1] * second.double(), torch.logsumexp(sums, dim=0)


def _lists(values: Any, counts: Any) -> Any:
    """Which entries of lists padded to one length are in use."""
    return torch.arange(values.shape[-1], device=values.device) < counts[..., None]


def _marked(shape: tuple[int, ...], columns: Any, used: Any) -> Any:
    """True at the given columns; the last column collects what is not used or lies outside."""
    width = shape[-1]
    inside = used & (columns >= 0) & (columns < width - 1)
    place = torch.where(inside, columns, torch.full_like(columns, width - 1)).long()
    marks = torch.zeros(shape, dtype=torch.bool, device=columns.device).scatter_(-1, place, True)
    marks[..., -1] = False
    return marks


def wanted(
    vertical: Any, slash: Any, lengths: Any, rows: int, block: int, counts: Any, width: int, *, causal: bool
) -> tuple[Any, Any]:
    """Columns that each block of rows must reach, and those that it may: ``[batch, heads, rows, width]`` each.

    A vertical is one column for all rows. A slash is a diagonal: row r reaches column r - s (in the causal form) or
    length + r - s, so a block of rows reaches a window of columns. Windows may be rounded up by less than a block.
    """
    batch, heads = slash.shape[:2]
    shape = (batch, heads, rows, width)
    start = torch.arange(rows, device=slash.device) * block
    length = lengths.long()[:, None, None, None]
    in_use = _lists(slash, counts[1])[None, :, None, :]
    base = (start[:, None] if causal else start[:, None] + length) - slash.long()[:, :, None, :]
    live = start[:, None] < length
    row = torch.arange(block, device=slash.device)

    def windows(reach: Any, *, clamp: bool) -> Any:
        origin = base.clamp_min(0) if clamp else base
        columns = origin[..., None] + reach
        used = (in_use & live)[..., None] & (base > -block)[..., None]
        if not clamp:
            used = used & ((start[:, None, None] + reach) < length[..., None])
        return _marked(shape, columns.flatten(-2), used.expand(columns.shape).flatten(-2))

    column = torch.arange(width, device=slash.device)
    ends = (start[:, None] + block).clamp_max(length) if causal else length
    straight = vertical.long()[:, :, None, :].expand(batch, heads, rows, -1)
    straight_used = _lists(vertical, counts[0])[None, :, None, :] & live & (straight < ends)
    must = _marked(shape, straight, straight_used) | windows(row, clamp=False)
    must = must & (column < length)
    may = must | windows(torch.arange(2 * block, device=slash.device), clamp=True) | (column >= length)
    may = may | _marked(shape, straight, _lists(vertical, counts[0])[None, :, None, :] & live)
    return must, may


def reached(outputs: Any, block: int, width: int) -> Any:
    """Columns that the operator's lists reach: blocks from each offset on, and single columns."""
    block_count, block_offset, column_count, column_index = outputs
    shape = (*block_count.shape, width)
    columns = block_offset.long()[..., None] + torch.arange(block, device=block_count.device)
    used = _lists(block_offset, block_count)[..., None].expand(columns.shape)
    blocks = _marked(shape, columns.flatten(-2), used.flatten(-2))
    return blocks | _marked(shape, column_index.long(), _lists(column_index, column_count))


def pooled(
    scores: Any,
    lengths: tuple[int, ...],
    keys: tuple[int, ...],
    cached: list[int],
    count: int,
    window: tuple[int, int, int],
    block: int,
    local: int,
    first: int,
) -> Any:
    """The largest score of each window of keys, for sequences one after the other.

    ``window`` is size, stride and padding. The first ``first`` windows, and those up to ``local`` before the query's
    own block, are infinite: they are always kept. A window without keys is minus infinity.
    """
    size, stride, padding = window
    device = scores.device
    begin = torch.arange(count, device=device) * stride - padding
    reach = begin[:, None] + torch.arange(size, device=device)
    done = []
    start = 0
    for length, limit, before in zip(lengths, keys, cached, strict=True):
        part = scores[:, start : start + length].float()
        inside = (reach >= 0) & (reach < limit)
        values = part[..., reach.clamp(0, part.shape[-1] - 1)].masked_fill(~inside, float("-inf")).amax(dim=-1)
        own = (torch.arange(length, device=device) + before) // block
        place = torch.arange(count, device=device)
        kept = (place < first) | ((own[:, None] >= place) & (own[:, None] <= place + local))
        done.append(values.masked_fill(kept, float("inf")))
        start += length
    return torch.cat(done, dim=1)
