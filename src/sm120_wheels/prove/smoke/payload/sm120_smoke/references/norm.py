"""Root mean square normalisation, its fused and rotary forms."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch


def rmsnorm(x: Any, weight: Any, eps: float, *, offset: float = 0.0) -> Any:
    """``x / sqrt(mean(x^2) + eps) * (weight + offset)`` over the last dimension, in float64. Gemma's offset is 1."""
    wide = x.double()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return wide * scale * (weight.double() + offset)


def fused_add_rmsnorm(x: Any, residual: Any, weight: Any, eps: float, *, offset: float = 0.0) -> tuple[Any, Any]:
    """The norm of ``x + residual``, and that sum. The sum is not rounded to the dtype before it is normalised."""
    total = x.double() + residual.double()
    return rmsnorm(total, weight, eps, offset=offset), total


def rotate(x: Any, cosine: Any, sine: Any, *, neox: bool) -> Any:
    """Rotary embedding of the last dimension of ``x``; ``cosine`` and ``sine`` have half its size and broadcast.

    NeoX pairs element i with i + half; the interleaved (GPT-J) form pairs 2i with 2i + 1.
    """
    half = x.shape[-1] // 2
    first, second = (x[..., :half], x[..., half:]) if neox else (x[..., 0::2], x[..., 1::2])
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(turned, dim=-1) if neox else torch.stack(turned, dim=-1).flatten(-2)


def rotary_embedding(positions: Any, x: Any, head_size: int, cache: Any, *, neox: bool) -> Any:
    """Each head's first ``cache.shape[1]`` elements rotated; ``cache`` is ``[position, cosines then sines]``."""
    rotary = cache.shape[1]
    heads = x.reshape(positions.shape[0], -1, head_size).double()
    row = cache.double()[positions]
    cosine, sine = row[:, None, : rotary // 2], row[:, None, rotary // 2 :]
    turned = rotate(heads[..., :rotary], cosine, sine, neox=neox)
    return torch.cat((turned, heads[..., rotary:]), dim=-1).reshape(x.shape)


def yarn_frequencies(base: float, rotary: int, factor: float, low: float, high: float) -> Any:
    """Angle per position of each pair. Factor 1: ``base^(-2i/rotary)``; else YaRN's blend (arXiv 2309.00071, 3.2)."""
    pair = torch.arange(rotary // 2, dtype=torch.float64, device="cuda")
    frequency = base ** (-2.0 * pair / rotary)
    if factor == 1.0:
        return frequency
    ramp = ((pair - low) / (high - low)).clamp(0.0, 1.0)
    return frequency / factor * ramp + frequency * (1.0 - ramp)


def fused_qk_norm_rope(
    qkv: Any,
    heads: tuple[int, int, int],
    weights: tuple[Any, Any],
    eps: float,
    positions: Any,
    frequencies: Any,
    *,
    neox: bool,
    gain: float,
) -> Any:
    """Each query and key head normalised, its first ``2 * len(frequencies)`` elements rotated and scaled by ``gain``.

    ``heads`` counts queries, keys and values; values stay as they are.
    """
    tokens, rotary = qkv.shape[0], 2 * frequencies.shape[0]
    whole = qkv.double().reshape(tokens, sum(heads), -1)
    angle = positions.double()[:, None, None] * frequencies
    done = []
    for part, weight in zip(whole.split(heads, dim=1)[:2], weights, strict=True):
        normed = rmsnorm(part, weight, eps)
        turned = rotate(normed[..., :rotary], angle.cos(), angle.sin(), neox=neox) * gain
        done.append(torch.cat((turned, normed[..., rotary:]), dim=-1))
    return torch.cat((*done, whole[:, heads[0] + heads[1] :]), dim=1).reshape(qkv.shape)
