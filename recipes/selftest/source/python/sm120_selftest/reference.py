"""The references: what each operator must give, in plain PyTorch on the CPU in float64. No kernel of ours is called.

Formats: OCP "8-bit Floating Point Specification" (e4m3) and "Microscaling Formats (MX) Specification v1.0" (e2m1,
e8m0); ue4m3 is e4m3 without sign (PTX ISA, "Alternate floating point data formats").
"""

from __future__ import annotations

import torch
from torch import Tensor

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of the codes 0 to 7; code + 8 is the negative."""
E4M3_MAX = 448.0


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.double()


def silu_and_mul(x: Tensor) -> Tensor:
    gate, value = x.double().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * value


def row_sum(x: Tensor) -> Tensor:
    return x.double().sum(dim=-1)


def normalize(x: Tensor) -> Tensor:
    """Divided by the sum of absolute values along the last dimension."""
    x = x.double()
    return x / x.abs().sum(dim=-1, keepdim=True)


def e4m3_rounded(x: Tensor) -> Tensor:
    """The nearest e4m3 value (ties to even), beyond the largest saturated."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).double()


def decode_e4m3(codes: Tensor) -> Tensor:
    return codes.view(torch.float8_e4m3fn).double()


def decode_e8m0(codes: Tensor) -> Tensor:
    return torch.exp2(codes.double() - 127)


def e2m1_rounded(x: Tensor) -> Tensor:
    """The nearest e2m1 value, ties to the even code, beyond 6 saturated."""
    values = torch.tensor(E2M1_VALUES, dtype=torch.float64)
    midpoints = (values[1:] + values[:-1]) / 2
    size = x.double().abs()
    # Where the size is a midpoint, left gives the lower code and right the upper: the even one of the two counts.
    lower, upper = torch.bucketize(size, midpoints, right=False), torch.bucketize(size, midpoints, right=True)
    code = torch.where(lower % 2 == 0, lower, upper)
    return torch.copysign(values[code], x.double())


def decode_e2m1(packed: Tensor) -> Tensor:
    """``[rows, columns / 2]`` bytes to ``[rows, columns]``; the low half of a byte has the even index."""
    codes = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(start_dim=-2).long()
    return torch.tensor([*E2M1_VALUES, *(-v for v in E2M1_VALUES)], dtype=torch.float64)[codes]


def block_scaled_product(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
    """``a [m, k]``, ``b [n, k]`` and one scale for each block of k: ``[m, n]``."""
    block = a.shape[1] // a_scale.shape[1]
    return (a * a_scale.repeat_interleave(block, dim=1)) @ (b * b_scale.repeat_interleave(block, dim=1)).T
