"""Inputs on the GPU, drawn from a seed, and drawn anew in place: a captured graph reads the same memory."""

from __future__ import annotations

from typing import Any

from sm120_smoke.lazy import torch


def dtype_of(name: str) -> Any:
    """torch's dtype of that name; cases name dtypes by strings."""
    return getattr(torch, name)


def tensors(dtype: str, *shapes: tuple[int, ...]) -> list[Any]:
    """Empty tensors on the current GPU; :func:`redraw` fills them before each launch."""
    return [torch.empty(shape, dtype=dtype_of(dtype), device="cuda") for shape in shapes]


def redraw(seed: int, *filled: Any, scale: float = 1.0) -> None:
    """Standard normal values times ``scale``, the same for the same seed and shapes, into each tensor in place."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for tensor in filled:
        values = torch.randn(tensor.shape, generator=generator, device="cuda", dtype=torch.float32)
        tensor.copy_((values * scale).to(tensor.dtype))


def redraw_integers(seed: int, low: int, high: int, *filled: Any) -> None:
    """Integers in ``low <= i < high`` into each tensor in place."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for tensor in filled:
        tensor.copy_(torch.randint(low, high, tensor.shape, generator=generator, device="cuda").to(tensor.dtype))
