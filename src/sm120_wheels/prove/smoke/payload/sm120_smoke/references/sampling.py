"""Choices among probabilities, and masks of vocabularies."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch

UNITS = 1 << 20


def exact_probabilities(logits: Any) -> Any:
    """Softmax rounded down to multiples of 2^-20, the rest given to the largest: sums of them are exact in float32."""
    units = (torch.softmax(logits.double(), dim=-1) * UNITS).floor()
    largest = units.argmax(dim=-1, keepdim=True)
    units.scatter_add_(-1, largest, UNITS - units.sum(dim=-1, keepdim=True))
    return (units / UNITS).float()


def _kept(probabilities: Any, least: Any) -> Any:
    kept = torch.where(probabilities >= least, probabilities.double(), 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def top_k_renormalize(probabilities: Any, k: Any) -> Any:
    """The ``k`` largest of each row (all where ``k`` is the row's length or more), as shares of their sum.

    A row that keeps all is returned as it is.
    """
    rows, width = probabilities.shape
    counts = torch.as_tensor(k, device=probabilities.device).expand(rows).long()
    ordered = probabilities.sort(dim=-1, descending=True).values
    least = ordered.gather(-1, (counts.clamp(1, width) - 1)[:, None])
    return torch.where((counts >= width)[:, None], probabilities.double(), _kept(probabilities, least))


def top_p_renormalize(probabilities: Any, p: Any) -> Any:
    """The fewest largest whose sum reaches ``p``, and their equals, as shares of their sum."""
    rows, width = probabilities.shape
    share = torch.as_tensor(p, device=probabilities.device, dtype=torch.float32).expand(rows).double()
    ordered = probabilities.double().sort(dim=-1, descending=True).values
    place = (ordered.cumsum(dim=-1) < share[:, None]).sum(dim=-1, keepdim=True).clamp_max(width - 1)
    return _kept(probabilities, ordered.gather(-1, place).float())


def masked_logits(logits: Any, mask: Any, chosen: Any) -> Any:
    """Minus infinity where a token's bit is 0, in the chosen rows (all where none are named)."""
    token = torch.arange(logits.shape[1], device=logits.device)
    allowed = ((mask[:, token // 32] >> (token % 32)) & 1).bool()
    if chosen is not None:
        others = torch.ones(logits.shape[0], dtype=torch.bool, device=logits.device)
        others[chosen.long()] = False
        allowed = allowed | others[:, None]
    return logits.masked_fill(~allowed, float("-inf"))
