"""Activations, in float64."""

from __future__ import annotations

import math
from typing import Any

from sm120_smoke.lazy import torch


def silu(x: Any) -> Any:
    """``x / (1 + exp(-x))``."""
    wide = x.double()
    return wide * torch.sigmoid(wide)


def gelu(x: Any) -> Any:
    """``x * Phi(x)``, with the exact error function."""
    wide = x.double()
    return wide * 0.5 * (1.0 + torch.erf(wide * math.sqrt(0.5)))


def gelu_tanh(x: Any) -> Any:
    """GELU's approximation by tanh, with the constant 0.044715 (Hendrycks and Gimpel, arXiv 1606.08415)."""
    wide = x.double()
    return wide * 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide**3)))


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}


def gated(x: Any, activation: str) -> Any:
    """The activation of the first half of the last dimension, times the second half."""
    first, second = x.chunk(2, dim=-1)
    return ACTIVATIONS[activation](first) * second.double()
