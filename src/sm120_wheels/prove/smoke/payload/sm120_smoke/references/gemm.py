"""Matrix products of quantised operands, dequantised exactly and multiplied in float64."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch


def scaled(a: Any, b: Any, scales_a: Any, scales_b: Any, bias: Any = None) -> Any:
    """``a @ b`` times a scale for each row and one for each column, plus a bias for each column."""
    product = a.double() @ b.double() * scales_a.double().reshape(-1, 1) * scales_b.double().reshape(1, -1)
    return product if bias is None else product + bias.double()


def blockwise(a: Any, b: Any, scales_a: Any, scales_b: Any) -> Any:
    """``a @ b`` with a scale of ``a`` for each row and 128 columns, of ``b`` for each square of 128."""
    left = a.double() * scales_a.double().repeat_interleave(128, dim=1)
    spread = scales_b.double().repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
    return left @ (b.double() * spread)


def grouped(sizes: list[int], product: Any) -> Any:
    """``product(expert, rows)`` for each expert's slice of rows, one below the other."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [product(i, slice(end - size, end)) for i, (size, end) in enumerate(zip(sizes, ends, strict=True)) if size]
    return torch.cat(parts)


def pack_nibbles(values: Any) -> Any:
    """Pairs of 4-bit numbers along the last dimension as int8, the first in the low half."""
    pairs = values.unflatten(-1, (-1, 2)).int() & 15
    byte = pairs[..., 0] | (pairs[..., 1] << 4)
    return torch.where(byte > 127, byte - 256, byte).to(torch.int8)
