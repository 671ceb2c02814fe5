"""Routing of tokens to experts, and the orders that grouped products need."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch


def best(scores: Any, count: int) -> Any:
    """Indices of the ``count`` largest along the last dimension, largest first; of equals the lower index first."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count]


def _normalized(weights: Any, renormalize: bool) -> Any:
    return weights / weights.sum(dim=-1, keepdim=True) if renormalize else weights


def topk_softmax(logits: Any, topk: int, *, renormalize: bool, cap: float, bias: Any) -> tuple[Any, Any]:
    """Softmax of the (soft-capped, then biased) logits; its ``topk`` largest and their experts."""
    scores = logits.double()
    if cap:
        scores = torch.tanh(scores / cap) * cap
    if bias is not None:
        scores = scores + bias.double()
    probabilities = torch.softmax(scores, dim=-1)
    chosen = best(probabilities, topk)
    return _normalized(probabilities.gather(-1, chosen), renormalize), chosen.int()


def topk_sigmoid(logits: Any, topk: int, *, renormalize: bool, bias: Any) -> tuple[Any, Any]:
    """Experts chosen by sigmoid plus bias; weighted by the sigmoid alone."""
    scores = torch.sigmoid(logits.double())
    chosen = best(scores if bias is None else scores + bias.double(), topk)
    return _normalized(scores.gather(-1, chosen), renormalize), chosen.int()


def kimi_gate(
    logits: Any, bias: Any, topk: int, *, renormalize: bool, scale: float, scale_output: bool
) -> tuple[Any, Any]:
    """As :func:`topk_sigmoid`; renormalised weights are scaled where asked for."""
    weights, chosen = topk_sigmoid(logits, topk, renormalize=renormalize, bias=bias)
    return (weights * scale if renormalize and scale_output else weights), chosen


def fused_gate(
    logits: Any, bias: Any, groups: int, chosen_groups: int, topk: int, *, shared: int, scale: float, scale_output: bool
) -> tuple[Any, Any]:
    """DeepSeek's gate: the best groups by the sum of their two best biased scores, then the best experts in those.

    Scores, biased scores and group sums are rounded to the dtype of the logits, as the kernel keeps them. ``shared``
    experts come last, each with the sum of the weights over ``scale``.
    """
    dtype = logits.dtype
    rows, experts = logits.shape
    scores = torch.sigmoid(logits.float()).to(dtype)
    biased = (scores.float() + bias.float()).to(dtype).float()
    two = biased.reshape(rows, groups, -1).topk(2, dim=-1).values
    sums = (two[..., 0] + two[..., 1]).to(dtype)
    allowed = torch.zeros(rows, groups, dtype=torch.bool, device=logits.device)
    allowed.scatter_(-1, best(sums.float(), chosen_groups), True)
    allowed = allowed.repeat_interleave(experts // groups, dim=-1)
    chosen = best(biased.masked_fill(~allowed, float("-inf")), topk - shared)
    weights = scores.double().gather(-1, chosen)
    total = weights.sum(dim=-1, keepdim=True)
    extra = torch.arange(experts, experts + shared, device=logits.device).expand(rows, shared)
    weights = torch.cat((weights, (total / scale).expand(rows, shared)), dim=-1) / total
    return (weights * scale if scale_output else weights), torch.cat((chosen, extra), dim=-1).int()


def align(ids: Any, block: int, experts: int, room: int) -> tuple[Any, Any, Any]:
    """Slots of each expert rounded up to blocks: the padded total, each block's expert, the tokens in each block.

    Free order: inside an expert the tokens may come in any order, so what is compared is each slot's expert, and the
    sorted tokens. See :func:`aligned_blocks` for the same from an operator's output.
    """
    counts = torch.bincount(ids.flatten().long(), minlength=experts)[:experts]
    blocks = (counts + block - 1) // block
    total = (blocks.sum() * block).reshape(1)
    length = (room + block - 1) // block
    # Like the operator's buffer: blocks after the last one keep what the caller put there, -1.
    ends = blocks.cumsum(0)
    place = torch.arange(length, device=ids.device)
    owner = torch.searchsorted(ends, place, right=True)
    owner = torch.where(place < ends[-1], owner, torch.full_like(owner, -1))
    slots = _expected_slots(ids, counts, block, room)
    return total.int(), owner.int(), slots


def _expected_slots(ids: Any, counts: Any, block: int, room: int) -> Any:
    """Tokens ordered by expert and number, each expert's block padded by the number of tokens."""
    tokens = ids.numel()
    flat = ids.flatten().long()
    order = torch.sort(flat, stable=True).indices
    padded = (counts + block - 1) // block * block
    starts = padded.cumsum(0) - padded
    firsts = counts.cumsum(0) - counts
    sorted_experts = flat[order]
    position = starts[sorted_experts] + torch.arange(tokens, device=ids.device) - firsts[sorted_experts]
    slots = torch.full((room,), tokens, device=ids.device, dtype=torch.int64)
    slots[position] = order
    return slots.int()


def aligned_blocks(slots: Any, owners: Any, padded: Any, ids: Any, block: int, experts: int) -> tuple[Any, Any, Any]:
    """An operator's slots with the tokens of each expert put in order: comparable with :func:`align`.

    A token in a block of another expert sorts into a place where none is expected, so it is still found.
    """
    room = slots.shape[0]
    tokens = ids.numel()
    owner_of_slot = owners.long().repeat_interleave(block)[:room]
    owner_of_slot = torch.where(owner_of_slot < 0, torch.full_like(owner_of_slot, experts + 1), owner_of_slot)
    key = owner_of_slot * (tokens + 1) + slots.long().clamp(0, tokens)
    order = torch.argsort(key, stable=True)
    return padded.clone(), owners.clone(), slots[order]


def grouping(ids: Any, experts: int, n: int, k: int, *, scales: bool, transposed: bool) -> list[Any]:
    """What two grouped products need: offsets, the two problem sizes of each expert, the order of rows."""
    flat = ids.flatten().long()
    counts = torch.bincount(flat, minlength=experts)
    zero = torch.zeros(1, dtype=torch.int64, device=ids.device)
    offsets = torch.cat((zero, counts.cumsum(0)))

    def sizes(columns: int, depth: int) -> Any:
        filled = [torch.full_like(counts, columns), torch.full_like(counts, depth)]
        rows = [filled[0], counts, filled[1]] if transposed else [counts, *filled]
        return torch.stack(rows, dim=1).int()

    order = torch.sort(flat, stable=True).indices
    tokens = order // ids.shape[1]
    results = [offsets.int(), sizes(2 * n, k), sizes(k, n), *_by_expert(tokens, flat[order], ids), flat.sort().values]
    if scales:
        rounded = (counts + 127) // 128 * 128
        results.append(torch.cat((zero, rounded.cumsum(0))).int())
    return results


def _by_expert(tokens: Any, experts_of_slot: Any, ids: Any) -> list[Any]:
    """The tokens of each expert in order, and where each copy of a token went, as an expert: no free order is left."""
    key = experts_of_slot * (ids.shape[0] + 1) + tokens.long()
    return [key.sort().values]


def grouped_order(gather: Any, scatter: Any, ids: Any) -> list[Any]:
    """An operator's two orders in the form that :func:`grouping` gives.

    ``gather[slot]`` is the token of a slot; ``scatter[copy]`` the slot of a token's copy.
    """
    flat = ids.flatten().long()
    experts_of_slot = torch.full_like(flat, -1)
    experts_of_slot.scatter_(0, scatter.long().clamp(0, flat.numel() - 1), flat)
    return [*_by_expert(gather, experts_of_slot, ids), experts_of_slot]


def shuffle_multiply_sum(x: Any, order: Any, factors: Any, tokens: int) -> Any:
    """For each token the sum of its rows of ``x``, found by ``order``, each times its factor."""
    rows = x.double()[order.long()].reshape(tokens, -1, x.shape[-1])
    if factors is not None:
        rows = rows * factors.double().reshape(tokens, -1, 1)
    return rows.sum(dim=1)
