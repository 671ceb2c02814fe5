"""Causal convolutions along a sequence, channel by channel, with the state that goes from one call to the next."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch


def convolve(x: Any, state: Any, weight: Any, bias: Any, *, silu: bool) -> Any:
    """``x`` ``[..., dim, length]`` behind ``state`` ``[..., dim, width - 1]``; one result for each element of ``x``."""
    width = weight.shape[-1]
    windows = torch.cat((state.double(), x.double()), dim=-1).unfold(-1, width, 1)
    result = (windows * weight.double()[:, None, :]).sum(dim=-1)
    if bias is not None:
        result = result + bias.double()[:, None]
    return torch.nn.functional.silu(result) if silu else result


def last(x: Any, state: Any) -> Any:
    """The state after ``x``: the last elements of both, as many as the state has."""
    return torch.cat((state, x), dim=-1)[..., -state.shape[-1] :]
