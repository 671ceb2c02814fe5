"""The cases: which operator on which shapes, its reference, and the error that is allowed and why.

Inputs are made on the CPU from a seed. ``allowed`` is an absolute error for each element of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from . import reference

Inputs = dict[str, Tensor]
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """``state`` makes what lives across runs and is no input (a staging buffer); it is passed to ``op``."""

    name: str
    feature: str
    shapes: tuple[Shape, ...]
    make: Callable[[Generator, Shape], Inputs]
    op: Callable[[Inputs, Any], Tensor]
    reference: Callable[[Inputs], Tensor]
    allowed: Callable[[Inputs, Tensor], Tensor]
    tolerance: str
    decode: Callable[[Tensor], Tensor] = Tensor.double
    state: Callable[[Shape, int], Any] = lambda shape, device: None
    note: Callable[[Any, int], str] = lambda state, device: ""


def all_cases() -> list[Case]:
    """Every case of the package; names are unique."""
    floats = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    plain = [make(name, dtype) for make in (_rmsnorm, _silu_and_mul, _row_sum) for name, dtype in floats.items()]
    return [
        *plain,
        _numa_staging(),
        _grid_normalize(),
        _fp8_quantize(),
        _cluster_normalize(),
        _tma_scale(),
        _fp4_quantize(),
        _fp4_dequantize(),
        _mma_nvfp4(exact=True),
        _mma_nvfp4(exact=False),
        _mma_mxfp8(exact=True),
        _mma_mxfp8(exact=False),
    ]


# What is allowed

_UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Half a unit in the last place of 1: the relative error of one rounding (IEEE 754; bfloat16 has 8 bits)."""


def _exact(_: Inputs, expected: Tensor) -> Tensor:
    return torch.zeros_like(expected)


def _roundings(dtype: torch.dtype, in_float32: int) -> Callable[[Inputs, Tensor], Tensor]:
    """One rounding to ``dtype`` and some to float32 before it; near zero, the smallest normal number's share."""
    relative = _UNIT[dtype] + in_float32 * _UNIT[torch.float32]
    floor = torch.finfo(dtype).smallest_normal * _UNIT[dtype] * 2
    return lambda _, expected: expected.abs() * relative + floor


def _input(shape: Shape, generator: Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


# Plain kernels


def _rmsnorm(name: str, dtype: torch.dtype) -> Case:
    eps = 1e-6
    return Case(
        name=f"rmsnorm[{name}]",
        feature="plain",
        shapes=((1, 32), (7, 4096), (128, 1000)),
        make=lambda g, s: {"x": _input(s, g, dtype), "weight": _input(s[1:], g, dtype)},
        op=lambda i, _: torch.ops.sm120_selftest.rmsnorm(i["x"], i["weight"], eps),
        reference=lambda i: reference.rmsnorm(i["x"], i["weight"], eps),
        allowed=_roundings(dtype, 32),
        tolerance="one rounding to the result's type; 32 in float32 for a tree sum, rsqrt (2 ulp) and two products",
    )


def _silu_and_mul(name: str, dtype: torch.dtype) -> Case:
    return Case(
        name=f"silu_and_mul[{name}]",
        feature="plain",
        shapes=((1, 64), (33, 4096), (128, 2 * 1001)),
        make=lambda g, s: {"x": _input(s, g, dtype)},
        op=lambda i, _: torch.ops.sm120_selftest.silu_and_mul(i["x"]),
        reference=lambda i: reference.silu_and_mul(i["x"]),
        allowed=_roundings(dtype, 8),
        tolerance="one rounding to the result's type; 8 in float32 for expf (2 ulp), a sum, a quotient and a product",
    )


def _row_sum(name: str, dtype: torch.dtype) -> Case:
    # Each of 256 threads adds columns / 256 numbers, then 10 steps of a tree.
    return Case(
        name=f"row_sum[{name}]",
        feature="plain",
        shapes=((1, 32), (7, 4096), (300, 1001)),
        make=lambda g, s: {"x": _input(s, g, dtype)},
        op=lambda i, _: torch.ops.sm120_selftest.row_sum(i["x"]),
        reference=lambda i: reference.row_sum(i["x"]),
        allowed=lambda i, _: (i["x"].shape[1] / 256 + 10) * 2.0**-24 * i["x"].double().abs().sum(dim=-1),
        tolerance="float32 summation: additions in a row * 2^-24 * sum of |x| (Higham, Accuracy and Stability, 4.2)",
    )


def _numa_staging() -> Case:
    def stage(inputs: Inputs, staging: Tensor) -> Tensor:
        x = inputs["x"]
        staging.copy_(x.view(torch.uint8), non_blocking=True)
        return staging.to(x.device, non_blocking=True).view(torch.float32)

    def nodes(staging: Tensor, device: int) -> str:
        ops = torch.ops.sm120_selftest
        return (
            f"{ops.numa_node_count()} NUMA nodes, GPU on {ops.gpu_numa_node(device)}, "
            f"memory on {ops.memory_numa_node(staging)} (-1: not told)"
        )

    return Case(
        name="numa_staging",
        feature="plain",
        shapes=((1 << 16,),),
        make=lambda g, s: {"x": _input(s, g)},
        op=stage,
        reference=lambda i: i["x"].double(),
        allowed=_exact,
        tolerance="a copy: exact",
        state=lambda s, device: torch.ops.sm120_selftest.pinned_near_gpu(4 * s[0], device),
        note=nodes,
    )


# Features


def _grid_normalize() -> Case:
    return Case(
        name="grid_normalize",
        feature="grid_sync",
        shapes=((32,), (100_003,), (1 << 22,)),
        make=lambda g, s: {"x": _input(s, g)},
        op=lambda i, _: torch.ops.sm120_selftest.grid_normalize(i["x"]),
        reference=lambda i: reference.normalize(i["x"]),
        # At most 2^22 / 256 threads' shares of one block, then 20 steps of two trees and a few partial sums.
        allowed=lambda i, e: (i["x"].numel() / 65536 + 40) * 2.0**-24 * e.abs(),
        tolerance="float32 sum of numbers of one sign: additions in a row * 2^-24, and one quotient",
    )


def _cluster_normalize() -> Case:
    return Case(
        name="cluster_normalize",
        feature="cluster",
        shapes=((1, 4), (5, 1001), (64, 8192)),
        make=lambda g, s: {"x": _input(s, g)},
        op=lambda i, _: torch.ops.sm120_selftest.cluster_normalize(i["x"]),
        reference=lambda i: reference.normalize(i["x"]),
        allowed=lambda i, e: (i["x"].shape[1] / 512 + 20) * 2.0**-24 * e.abs(),
        tolerance="float32 sum of numbers of one sign: additions in a row * 2^-24, and one quotient",
    )


def _tma_scale() -> Case:
    return Case(
        name="tma_scale",
        feature="tma_bulk",
        # One short tile; a ragged end; more tiles than blocks, so that the barriers go through both phases.
        shapes=((4,), (1024 * 5 + 12,), (1024 * 64 * 5 + 4,)),
        make=lambda g, s: {"x": _input(s, g)},
        op=lambda i, _: torch.ops.sm120_selftest.tma_scale(i["x"], 2.0),
        reference=lambda i: i["x"].double() * 2,
        allowed=_exact,
        tolerance="a copy times two: exact",
    )


def _wide_input(limit: float) -> Callable[[Generator, Shape], Inputs]:
    """Random signs and sizes over many powers of two, up to four times ``limit``, so that some must saturate."""

    def make(generator: Generator, shape: Shape) -> Inputs:
        exponent = torch.rand(shape, generator=generator) * 12 - 10
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return {"x": sign * limit * torch.exp2(exponent)}

    return make


def _fp8_quantize() -> Case:
    return Case(
        name="fp8_quantize",
        feature="fp8_convert",
        shapes=((1, 2), (65, 1000)),
        make=_wide_input(reference.E4M3_MAX),
        op=lambda i, _: torch.ops.sm120_selftest.fp8_quantize(i["x"]),
        reference=lambda i: reference.e4m3_rounded(i["x"]),
        decode=reference.decode_e4m3,
        allowed=_exact,
        tolerance="the conversion is defined to the bit: exact",
    )


def _fp4_quantize() -> Case:
    def make(generator: Generator, shape: Shape) -> Inputs:
        # Eighths hold every midpoint between two e2m1 values, so that ties are tried too; beyond 6 they saturate.
        return {"x": torch.randint(-80, 81, shape, generator=generator) / 8}

    return Case(
        name="fp4_quantize",
        feature="fp4_convert",
        shapes=((1, 8), (65, 1000)),
        make=make,
        op=lambda i, _: torch.ops.sm120_selftest.fp4_quantize(i["x"]),
        reference=lambda i: reference.e2m1_rounded(i["x"]),
        decode=reference.decode_e2m1,
        allowed=_exact,
        tolerance="the conversion is defined to the bit (both zeros count as one): exact",
    )


def _codes(generator: Generator, shape: Shape) -> Tensor:
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def _fp4_dequantize() -> Case:
    return Case(
        name="fp4_dequantize",
        feature="fp4_convert",
        shapes=((16, 16), (65, 500)),
        make=lambda g, s: {"x": _codes(g, s)},
        op=lambda i, _: torch.ops.sm120_selftest.fp4_dequantize(i["x"]),
        reference=lambda i: reference.decode_e2m1(i["x"]),
        allowed=_exact,
        tolerance="every e2m1 value is a float16: exact",
    )


_MMA_SHAPES = ((1, 8, 64), (16, 8, 64), (17, 24, 128), (64, 128, 512), (100, 256, 1024))
"""m, n, k: one tile, ragged tiles, many steps of k; small m above all, where field reports have found zeros."""

_EXACT_TOLERANCE = "values chosen so that every partial sum is exact in 14 bits: exact"
_MMA_TOLERANCE = "2^-11 of the sum of |products|: room for tensor cores that keep 14 bits while they add"


def _mma_allowed(decoded: Callable[[Inputs], tuple[Tensor, ...]]) -> Callable[[Inputs, Tensor], Tensor]:
    def allowed(inputs: Inputs, _: Tensor) -> Tensor:
        a, b, a_scale, b_scale = decoded(inputs)
        return 2.0**-11 * reference.block_scaled_product(a.abs(), b.abs(), a_scale.abs(), b_scale.abs())

    return allowed


def _mma_nvfp4(*, exact: bool) -> Case:
    def make(generator: Generator, shape: Shape) -> Inputs:
        m, n, k = shape
        if exact:
            # Codes of 0, +-0.5, +-1 and scales of 1 and 2: products are quarters up to 4.
            few = torch.tensor([0, 1, 2, 8, 9, 10], dtype=torch.uint8)
            nibbles = [few[torch.randint(0, 6, (rows, k), generator=generator)] for rows in (m, n)]
            a, b = (each[:, 0::2] | each[:, 1::2] << 4 for each in nibbles)
            scales = torch.tensor([0x38, 0x40], dtype=torch.uint8)  # 1 and 2 in e4m3
            a_scale, b_scale = (scales[torch.randint(0, 2, (rows, k // 16), generator=generator)] for rows in (m, n))
        else:
            a, b = (_codes(generator, (rows, k // 2)) for rows in (m, n))
            # All normal positive e4m3 from 2^-3 to below 2^3.
            a_scale, b_scale = (
                torch.randint(0x20, 0x50, (rows, k // 16), generator=generator, dtype=torch.uint8) for rows in (m, n)
            )
        return {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale}

    def decoded(i: Inputs) -> tuple[Tensor, ...]:
        operands = (reference.decode_e2m1(i[name]) for name in ("a", "b"))
        return (*operands, *(reference.decode_e4m3(i[name]) for name in ("a_scale", "b_scale")))

    return Case(
        name=f"mma_nvfp4[{'exact' if exact else 'random'}]",
        feature="mma_block_scale",
        shapes=_MMA_SHAPES,
        make=make,
        op=lambda i, _: torch.ops.sm120_selftest.mma_nvfp4(i["a"], i["b"], i["a_scale"], i["b_scale"]),
        reference=lambda i: reference.block_scaled_product(*decoded(i)),
        allowed=_exact if exact else _mma_allowed(decoded),
        tolerance=_EXACT_TOLERANCE if exact else _MMA_TOLERANCE,
    )


def _mma_mxfp8(*, exact: bool) -> Case:
    def make(generator: Generator, shape: Shape) -> Inputs:
        m, n, k = shape
        if exact:
            # 0, +-0.5, +-1 in e4m3, and scales of 1 and 2 in e8m0.
            few = torch.tensor([0x00, 0x30, 0x38, 0xB0, 0xB8], dtype=torch.uint8)
            a, b = (few[torch.randint(0, 5, (rows, k), generator=generator)] for rows in (m, n))
            low, high = 127, 129
        else:
            a, b = (
                torch.randn((rows, k), generator=generator).to(torch.float8_e4m3fn).view(torch.uint8) for rows in (m, n)
            )
            low, high = 120, 135
        a_scale, b_scale = (
            torch.randint(low, high, (rows, k // 32), generator=generator, dtype=torch.uint8) for rows in (m, n)
        )
        return {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale}

    def decoded(i: Inputs) -> tuple[Tensor, ...]:
        operands = (reference.decode_e4m3(i[name]) for name in ("a", "b"))
        return (*operands, *(reference.decode_e8m0(i[name]) for name in ("a_scale", "b_scale")))

    return Case(
        name=f"mma_mxfp8[{'exact' if exact else 'random'}]",
        feature="mma_block_scale",
        shapes=_MMA_SHAPES,
        make=make,
        op=lambda i, _: torch.ops.sm120_selftest.mma_mxfp8(i["a"], i["b"], i["a_scale"], i["b_scale"]),
        reference=lambda i: reference.block_scaled_product(*decoded(i)),
        allowed=_exact if exact else _mma_allowed(decoded),
        tolerance=_EXACT_TOLERANCE if exact else _MMA_TOLERANCE,
    )
