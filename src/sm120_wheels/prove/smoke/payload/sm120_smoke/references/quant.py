"""Quantisers and dequantisers, rounded step by step where the kernels round."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch

LARGEST = {"float8_e4m3fn": 448.0, "int8": 127.0}
LEAST = {"float8_e4m3fn": -448.0, "int8": -128.0}


def to_type(x: Any, target: str) -> Any:
    """Clamped to the type's range; e4m3 rounds to nearest even, int8 drops the fraction as a C cast does."""
    x = x.clamp(LEAST[target], LARGEST[target])
    return x.to(torch.float8_e4m3fn).float() if target == "float8_e4m3fn" else x.trunc()


def per_token(x: Any) -> tuple[Any, Any]:
    """E4m3 values of each row over its largest (448), and the rows' scales."""
    wide = x.float()
    scale = wide.abs().amax(dim=-1, keepdim=True) / 448.0
    return to_type(wide * (1.0 / scale), "float8_e4m3fn"), scale


def up_to_power_of_two(x: Any) -> tuple[Any, Any]:
    """The exponent of the least power of two that is not below ``x``, and that power (float32)."""
    fraction, exponent = torch.frexp(x)
    power = torch.where(fraction == 0.5, exponent - 1, exponent)
    return power, torch.ldexp(torch.ones_like(x), power)


def per_group(x: Any, group: int, target: str, *, powers: bool, eps: float = 1e-10) -> tuple[Any, Any]:
    """Values in the target type of each group over its largest, and the scales.

    With ``powers`` a scale is rounded up to a power of two, and what is returned is its exponent plus 127 (UE8M0 of the
    OCP Microscaling Formats Specification 1.0).
    """
    groups = x.float().unflatten(-1, (-1, group))
    scale = groups.abs().amax(dim=-1).clamp_min(eps) / LARGEST[target]
    if powers:
        power, scale = up_to_power_of_two(scale)
    values = to_type(groups / scale[..., None], target).flatten(-2)
    return values, (power + 127 if powers else scale)


def silu_and_mul(x: Any) -> Any:
    """The gated activation, rounded to the dtype after the activation and after the product."""
    first, second = x.chunk(2, dim=-1)
    return (torch.nn.functional.silu(first.float()).to(x.dtype).float() * second.float()).to(x.dtype)


def nibbles(words: Any) -> Any:
    """The eight 4-bit fields of each 32-bit word, lowest first, in a new last dimension."""
    return (words[..., None] >> (torch.arange(8, device=words.device) * 4)) & 15


AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which field of a word holds each of eight neighbouring columns (AutoAWQ's packing)."""


def awq(weights: Any, scales: Any, zeros: Any) -> Any:
    """``(q - z) * scale``; rows share scales and zeros in groups."""
    values, zero = (nibbles(words)[..., list(AWQ_ORDER)].flatten(-2) for words in (weights, zeros))
    group = weights.shape[0] // scales.shape[0]
    spread = [part.repeat_interleave(group, dim=0) for part in (zero, scales)]
    return (values - spread[0]).double() * spread[1].double()
