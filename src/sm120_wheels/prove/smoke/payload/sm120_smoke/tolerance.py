"""Tolerances by dtype, with their source."""

from __future__ import annotations

from sm120_smoke.case import EXACT, Tolerance

UNIT = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
"""Half a unit in the last place of 1: the relative error of one rounding to nearest (IEEE 754-2019; bfloat16 has 8
bits of significand, e4m3 has 4, e5m2 has 3: OCP 8-bit Floating Point Specification 1.0)."""

SMALLEST_NORMAL = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float8_e4m3fn": 2.0**-6,
    "float8_e5m2": 2.0**-14,
}


def rounding(dtype: str, *, roundings: int = 1, float32_steps: int = 0, scale: float = 1.0, source: str) -> Tolerance:
    """``roundings`` to the dtype after ``float32_steps`` of float32 arithmetic on numbers around ``scale``."""
    relative = roundings * UNIT[dtype] + float32_steps * UNIT["float32"]
    absolute = SMALLEST_NORMAL[dtype] * UNIT[dtype] * 2 + float32_steps * UNIT["float32"] * scale
    return Tolerance(relative=relative, absolute=absolute, source=source)


FAST_STEPS = 64
"""Steps of float32 arithmetic that a fast exponential or division may be off by.

sgl-kernel's library for 9.0 is compiled with ``-use_fast_math``: expf is within 2 + 1.173 |x| units in the last place
(so 32 for an argument of 25), division within 2 (CUDA C++ Programming Guide, intrinsic functions). Its other library,
the one that 10.0 and 12.0 load, is not; both must pass.
"""

FAST_TANH = 2.0**-10
"""Relative error of the fast hyperbolic tangent: within 2^-11 (the same guide), doubled for what is made of it."""


def product_sum(dtype: str, *, terms: int, scale: float, source: str = "") -> Tolerance:
    """A dot product of ``terms`` products of size ``scale``, summed in float32 in any order, rounded once to the dtype.

    The rounding errors of a sum of n terms of random sign grow as sqrt(n) in practice (Higham, Accuracy and Stability
    of Numerical Algorithms, 2nd ed., section 4.2); 8 times that is allowed.
    """
    size = scale * terms**0.5
    return Tolerance(
        relative=UNIT[dtype],
        absolute=UNIT[dtype] * size * 0.5 + 8 * UNIT["float32"] * size * terms**0.5,
        source=source or f"float32 sum of {terms} products of about {scale:g} (Higham 4.2), one rounding to {dtype}",
    )


def product_sum_fp8(dtype: str, *, terms: int, scale: float) -> Tolerance:
    """As :func:`product_sum`, for 8-bit floating-point products on tensor cores.

    Hopper's keep about 14 bits of the running sum (DeepSeek-V3 Technical Report, arXiv 2412.19437, 3.3.2), cut off at
    each step of 32 terms: the errors may all point the same way.
    """
    plain = product_sum(dtype, terms=terms, scale=scale)
    size = scale * terms**0.5
    return Tolerance(
        relative=plain.relative,
        absolute=plain.absolute + (terms / 32) * 2.0**-13 * size,
        source=f"{terms} e4m3 products of about {scale:g}, about 14 bits kept at each step of 32 (arXiv 2412.19437)",
    )


__all__ = [
    "EXACT",
    "FAST_STEPS",
    "FAST_TANH",
    "SMALLEST_NORMAL",
    "UNIT",
    "Tolerance",
    "product_sum",
    "product_sum_fp8",
    "rounding",
]
