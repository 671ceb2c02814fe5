"""GPTQ's packing: integers side by side in 32-bit words, along the depth for weights and the columns for zeros."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch


def fields(words: Any, bits: int) -> Any:
    """The ``32 / bits`` numbers of each word, lowest first, in a new last dimension."""
    return (words[..., None] >> (torch.arange(32 // bits, device=words.device) * bits)) & (2**bits - 1)


def join(values: Any, bits: int) -> Any:
    """The words of such numbers, int32."""
    words = (values.long() << (torch.arange(32 // bits, device=values.device) * bits)).sum(dim=-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def rows_of(words: Any, bits: int) -> Any:
    """Weights ``[depth, columns]`` of words ``[depth * bits / 32, columns]``."""
    return fields(words, bits).transpose(1, 2).flatten(0, 1)


def dequantize(weights: Any, zeros: Any, scales: Any, bits: int) -> Any:
    """``(q - z - 1) * scale``, rows in equal groups; zeros are stored one too low."""
    values, zero = rows_of(weights, bits), fields(zeros, bits).flatten(1) + 1
    group = values.shape[0] // scales.shape[0]
    spread = [part.repeat_interleave(group, dim=0) for part in (zero, scales)]
    return (values - spread[0]).double() * spread[1].double()


def reorder(weights: Any, order: Any) -> Any:
    """4-bit rows in the given order."""
    rows = rows_of(weights, 4)[order.long()]
    return join(rows.unflatten(0, (-1, 8)).transpose(1, 2), 4)


def exllama_order(weights: Any) -> Any:
    """The eight 4-bit numbers of each word with the even ones first."""
    return join(fields(weights, 4)[..., [0, 2, 4, 6, 1, 3, 5, 7]], 4)
