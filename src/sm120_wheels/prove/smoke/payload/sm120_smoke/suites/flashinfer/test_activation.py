"""flashinfer's gated activations."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import Launch, Tolerance, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.tolerance import FAST_TANH, rounding

#: Sizes that take 16, 8, 4 and 2 bytes at a time, few rows that are split over blocks, and many.
SHAPES = [(1, 8192), (3, 3420), (17, 129), (5, 66), (4099, 256)]
_SOURCE = "one rounding to dtype; a float32 approximation of exp or erf (about 2**-18 relative) and two products"


def _gate(name: str, x: Any) -> Any:
    functional = torch.nn.functional
    if name == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def _tolerance(name: str, dtype: str) -> Tolerance:
    exact = rounding(dtype, roundings=2, float32_steps=64, scale=4.0, source=_SOURCE)
    if name != "gelu_tanh":
        return exact
    # x / 2 * (1 + tanh u) * y, with tanh.approx.f32 (include/flashinfer/math.cuh): where tanh is near -1 the error
    # stays absolute. For normal values times 2, |x y| / 2 is below 10 but for few.
    source = "tanh.approx.f32 in 1 + tanh: absolute times |x y| / 2 (below 10 for inputs of size 2); two roundings"
    return Tolerance(relative=exact.relative + FAST_TANH, absolute=exact.absolute + FAST_TANH * 10, source=source)


@case("flashinfer.{name}_and_mul::{name}_and_mul")
@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_activation(name: str, dtype: str, rows: int, hidden: int) -> Launch:
    import flashinfer

    (x,) = tensors(dtype, (rows, 2 * hidden))
    out = torch.empty((rows, hidden), dtype=x.dtype, device="cuda")
    function = getattr(flashinfer.activation, f"{name}_and_mul")

    def reference() -> Any:
        wide = x.double()
        return (_gate(name, wide[:, :hidden]) * wide[:, hidden:]).to(x.dtype)

    return Launch(
        run=lambda: function(x, out=out),
        reference=reference,
        redraw=lambda seed: redraw(seed, x, scale=2.0),
        tolerance=_tolerance(name, dtype),
    )
