"""What flashinfer's operators should give, in plain PyTorch and float64, from their documentation."""

from __future__ import annotations

import math
from typing import Any

from sm120_smoke.lazy import torch


def rmsnorm(x: Any, weight: Any, eps: float, *, bias: float = 0.0) -> Any:
    """``x / rms(x) * (weight + bias)`` in float64; ``bias`` is 1 for Gemma."""
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (weight.double() + bias)


def layernorm(x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * gamma.double() + beta.double()


def to_fp8(values: Any, dtype: Any) -> Any:
    """Clamped to what the format holds, rounded to it."""
    limit = float(torch.finfo(dtype).max)
    return values.clamp(-limit, limit).float().to(dtype)


def frequencies(dim: int, *, theta: float, scale: float, llama31: bool = False) -> Any:
    """Radians for each position and pair, float64, shape ``(dim / 2,)``.

    With ``llama31`` low frequencies are divided by ``scale``, high ones are kept, and those between are mixed, with the
    low and high factor (1 and 4) and the older context (8192 positions) of Llama 3.1.
    """
    plain = torch.pow(torch.tensor(theta, dtype=torch.float64), -torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if not llama31:
        return plain / scale
    low, high, context = 1.0, 4.0, 8192.0
    keep = ((context * plain / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return plain * keep + plain / scale * (1 - keep)


def rotate(x: Any, cosine: Any, sine: Any, *, interleave: bool) -> Any:
    """Rotate the first ``2 * cosine.shape[-1]`` dimensions of ``(tokens, heads, dim)`` in float64; others are kept."""
    half = cosine.shape[-1]
    wide = x.double()
    turned, kept = wide[..., : 2 * half], wide[..., 2 * half :]
    c, s = cosine.double().unsqueeze(1), sine.double().unsqueeze(1)
    if interleave:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = torch.stack([a * c - b * s, b * c + a * s], dim=-1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        out = torch.cat([a * c - b * s, b * c + a * s], dim=-1)
    return torch.cat([out, kept], dim=-1)


def merge_states(v: Any, s: Any) -> tuple[Any, Any]:
    """Partial attention outputs ``(tokens, states, heads, dim)`` merged by their base-2 logarithms of sums."""
    wide = s.double()
    top = wide.amax(1, keepdim=True)
    weight = torch.exp2(wide - top)
    total = weight.sum(1)
    merged = (v.double() * weight.unsqueeze(-1)).sum(1) / total.unsqueeze(-1)
    return merged, torch.log2(total) + top.squeeze(1)


def nvfp4_blocks(x: Any, scale: float) -> tuple[Any, Any]:
    """Packed e2m1 codes, two in a byte with the first in the low half, and an e4m3 scale for each 16 elements.

    An element is ``code * block scale * scale``. In float32, step by step as flashinfer's page.cuh with precise
    rounding, so that the bytes can be compared; half of a step of e2m1 rounds to even.
    """
    blocks = x.float().unflatten(-1, (-1, 16))
    whole = torch.tensor(scale, dtype=torch.float32, device=x.device)
    each = (blocks.abs().amax(-1) * (1.0 / (6.0 * whole))).clamp(max=448.0).to(torch.float8_e4m3fn)
    step = each.float() * whole
    inverse = torch.where(step > 0, 1.0 / step, torch.zeros_like(step)).unsqueeze(-1)
    size = (blocks * inverse).abs()
    code = torch.zeros_like(size, dtype=torch.uint8)
    for bound in (0.25, 1.25, 2.5, 5.0):
        code += (size > bound).to(torch.uint8)
    for bound in (0.75, 1.75, 3.5):
        code += (size >= bound).to(torch.uint8)
    code += torch.signbit(blocks).to(torch.uint8) * 8
    flat = code.flatten(-2)
    return flat[..., 0::2] + flat[..., 1::2] * 16, each


def rope3d(
    grid: tuple[int, int, int], channels: tuple[int, int, int], base: float, yarn: tuple[float, float, float]
) -> Any:
    """The angle of each token of a frame, height and width grid and each pair of channels, ``(tokens, pairs)``.

    ``yarn`` is factor, low and high: pairs below ``low`` keep their frequency, those above ``high`` divide it by
    ``factor`` (arXiv 2309.00071, 3.2), counted within the channels of one axis; factor 1 leaves it out.
    """
    factor, low, high = yarn
    angles = []
    places = torch.cartesian_prod(*[torch.arange(size, dtype=torch.float64) for size in grid])
    for place, count in zip(places.unbind(1), channels, strict=True):
        pair = torch.arange(count // 2, dtype=torch.float64)
        plain = base ** (-2.0 * pair / count)
        ramp = ((pair - low) / (high - low)).clamp(0, 1) if factor != 1 else torch.zeros_like(pair)
        angles.append(place[:, None] * (plain / factor * ramp + plain * (1 - ramp)))
    return torch.cat(angles, dim=1).cuda()
