"""DeepSeek-V4's fused query and key preparation, rounded where the kernels round."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch
from sm120_smoke.references.norm import rotate

LARGEST_E4M3 = 448.0


def _turn_tail(x: Any, frequencies: Any, positions: Any) -> Any:
    """The last 64 elements rotated as 32 complex numbers, by the (real, imaginary) pairs of the position's row."""
    row = frequencies.float()[positions.long()]
    row = row.reshape(row.shape[0], *[1] * (x.dim() - 2), 64)
    turned = rotate(x[..., -64:], row[..., 0::2], row[..., 1::2], neox=False)
    return torch.cat((x[..., :-64], turned), dim=-1)


def _normed(x: Any, eps: float) -> Any:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)


def query(x: Any, frequencies: Any, positions: Any, eps: float) -> Any:
    """Each head normalised without a weight, rounded to bfloat16, its tail rotated."""
    return _turn_tail(_normed(x, eps).bfloat16().float(), frequencies, positions)


def _to_e4m3(x: Any) -> Any:
    return x.clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn).float()


def key(x: Any, weight: Any, frequencies: Any, positions: Any, eps: float) -> tuple[Any, Any, Any]:
    """The 448 quantised values as numbers, the 64 rotated ones, and the 7 exponents (biased by 127)."""
    whole = _turn_tail(_normed(x, eps) * weight.float(), frequencies, positions)
    blocks = whole[:, :448].reshape(-1, 7, 64)
    largest = blocks.abs().amax(dim=-1).clamp_min(1e-4) / LARGEST_E4M3
    fraction, exponent = torch.frexp(largest)
    power = torch.where(fraction == 0.5, exponent - 1, exponent)
    scale = torch.ldexp(torch.ones_like(largest), power)[..., None]
    values = _to_e4m3(blocks / scale) * scale
    return values.reshape(-1, 448), whole[:, 448:], power + 127


def decode_cache(cache: Any, slots: Any, page: int) -> tuple[Any, Any, Any]:
    """The same three from the pages of a cache: values at 576 bytes a token, scales behind them at 8 a token."""
    place = slots.long()
    rows, offset = cache[place // page], place % page
    column = torch.arange(576, device=cache.device)
    entry = rows.gather(1, offset[:, None] * 576 + column)
    scales = rows.gather(1, 576 * page + offset[:, None] * 8 + column[:7])
    numbers = entry[:, :448].contiguous().view(torch.float8_e4m3fn).float().reshape(-1, 7, 64)
    power = torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.int() - 127)
    rotated = entry[:, 448:].contiguous().view(torch.bfloat16)
    return (numbers * power[..., None]).reshape(-1, 448), rotated, scales.int()


def hadamard(x: Any) -> Any:
    """The 128-point Walsh-Hadamard transform in natural (Sylvester) order, over sqrt(128)."""
    for bit in range(7):
        pairs = x.unflatten(-1, (-1, 2, 1 << bit))
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack((first + second, first - second), dim=-2).flatten(-3)
    return x * 128**-0.5


def indexer(x: Any, weight: Any, factor: float, frequencies: Any, positions: Any) -> tuple[Any, Any]:
    """Tail rotated, transformed, quantised to e4m3 by the largest of the head; the weight times factor and scale."""
    whole = hadamard(_turn_tail(x.float(), frequencies, positions))
    scale = whole.abs().amax(dim=-1, keepdim=True).clamp_min(1e-4) / LARGEST_E4M3
    return _to_e4m3(whole * (1.0 / scale)), weight.float()[..., None] * factor * scale
