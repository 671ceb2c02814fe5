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


def redraw_uniform(seed: int, low: float, high: float, *filled: Any) -> None:
    """Uniform values in ``low <= x < high`` into each tensor in place."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for tensor in filled:
        values = torch.rand(tensor.shape, generator=generator, device="cuda", dtype=torch.float32)
        tensor.copy_((values * (high - low) + low).to(tensor.dtype))


def redraw_distinct(seed: int, high: int, *filled: Any) -> None:
    """Distinct integers out of ``0 .. high - 1``, in random order, along the last dimension of each tensor in place."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for tensor in filled:
        keys = torch.rand((*tensor.shape[:-1], high), generator=generator, device="cuda", dtype=torch.float32)
        tensor.copy_(keys.argsort(dim=-1)[..., : tensor.shape[-1]].to(tensor.dtype))


def redraw_bytes(seed: int, *filled: Any) -> None:
    """Random bits into each tensor in place, whatever its dtype. The bytes of the tensor must be contiguous."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for tensor in filled:
        raw = tensor.view(torch.uint8)
        raw.copy_(torch.randint(0, 256, raw.shape, generator=generator, device="cuda", dtype=torch.uint8))


MARK = 64.0
"""Lies where an operator must neither read nor write: exact in every dtype, and far from every number that is drawn."""


class Apart:
    """A tensor whose rows lie ``padding`` elements apart: contiguous in its last dimension only.

    ``redraw`` marks the ``padding`` (:func:`mark`), which is a result as well (:func:`marks`): an operator that takes
    the rows for contiguous reads marks, or writes over them.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...], padding: int) -> None:
        whole = torch.empty((*shape[:-1], shape[-1] + padding), dtype=dtype_of(dtype), device="cuda")
        self.rows, self.padding = whole[..., : shape[-1]], whole[..., shape[-1] :]


def mark(*untouched: Any) -> None:
    """Fill what must stay as it is."""
    for tensor in untouched:
        tensor.fill_(MARK)


def marks(*untouched: Any) -> list[Any]:
    """What is to be found there after the launch."""
    return [torch.full_like(tensor, MARK) for tensor in untouched]


def integers(shape: tuple[int, ...], dtype: str = "int32") -> Any:
    """A zeroed integer tensor on the GPU."""
    return torch.zeros(shape, dtype=dtype_of(dtype), device="cuda")


def redraw_ranks(seed: int, step: float, *filled: Any) -> None:
    """A random order of evenly spaced values along the last dimension, none twice: a choice among them has no ties.

    With ``step`` a power of two and at most 512 values they are exact in bfloat16.
    """
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for tensor in filled:
        count = tensor.shape[-1]
        keys = torch.rand(tensor.shape, generator=generator, device="cuda", dtype=torch.float32)
        tensor.copy_(((keys.argsort(dim=-1) - count // 2).to(torch.float32) * step).to(tensor.dtype))
