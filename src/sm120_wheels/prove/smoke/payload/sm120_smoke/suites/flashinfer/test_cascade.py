"""flashinfer's merge of partial attention results."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import flashinfer_math as math
from sm120_smoke.tolerance import UNIT

DTYPES = ["float16", "bfloat16"]
#: ex2.approx and lg2.approx have an absolute error of about 2**-22 (PTX ISA); a few of them and the sum.
_STATE = Tolerance(absolute=2.0**-18, relative=2.0**-20, source="ex2.approx, lg2.approx: 2**-22 each (PTX ISA)")


def _tolerances(dtype: str) -> list[Tolerance]:
    values = Tolerance(
        relative=2 * UNIT[dtype],
        absolute=2 * UNIT[dtype],
        source="weights sum to 1; one rounding to dtype of values about 1",
    )
    return [values, _STATE]


@case("flashinfer.cascade::merge_state")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "dim"), [(1, 1, 64), (37, 5, 128), (1025, 8, 256)])
def test_merge_state(dtype: str, tokens: int, heads: int, dim: int) -> Launch:
    import flashinfer

    va, vb = tensors(dtype, *[(tokens, heads, dim)] * 2)
    sa, sb = tensors("float32", *[(tokens, heads)] * 2)

    def reference() -> list[Any]:
        merged, state = math.merge_states(torch.stack([va, vb], 1), torch.stack([sa, sb], 1))
        return [merged.to(va.dtype), state.float()]

    return Launch(
        run=lambda: flashinfer.merge_state(va, sa, vb, sb),
        reference=reference,
        redraw=lambda seed: redraw(seed, va, vb, sa, sb),
        tolerance=_tolerances(dtype),
    )


@case("flashinfer.cascade::merge_state_in_place")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [False, True])
def test_merge_state_in_place(dtype: str, masked: bool) -> Launch:
    import flashinfer

    tokens, heads, dim = 37, 5, 128
    v, first_v, other = tensors(dtype, *[(tokens, heads, dim)] * 3)
    s, first_s, other_s = tensors("float32", *[(tokens, heads)] * 3)
    mask = torch.arange(tokens, device="cuda") % 3 != 0 if masked else None

    def run() -> list[Any]:
        v.copy_(first_v)
        s.copy_(first_s)
        flashinfer.merge_state_in_place(v, s, other, other_s, mask=mask)
        return [v, s]

    def reference() -> list[Any]:
        merged, state = math.merge_states(torch.stack([first_v, other], 1), torch.stack([first_s, other_s], 1))
        if mask is not None:
            merged = torch.where(mask[:, None, None], merged, first_v.double())
            state = torch.where(mask[:, None], state, first_s.double())
        return [merged.to(v.dtype), state.float()]

    return Launch(
        run=run,
        reference=reference,
        redraw=lambda seed: redraw(seed, first_v, other, first_s, other_s),
        tolerance=_tolerances(dtype),
    )


@case("flashinfer.cascade::merge_states")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "states", "heads", "dim"), [(1, 2, 1, 64), (19, 7, 5, 128), (3, 130, 8, 128)])
def test_merge_states(dtype: str, tokens: int, states: int, heads: int, dim: int) -> Launch:
    import flashinfer

    (v,) = tensors(dtype, (tokens, states, heads, dim))
    (s,) = tensors("float32", (tokens, states, heads))

    def reference() -> list[Any]:
        merged, state = math.merge_states(v, s)
        return [merged.to(v.dtype), state.float()]

    return Launch(
        run=lambda: flashinfer.merge_states(v, s),
        reference=reference,
        redraw=lambda seed: redraw(seed, v, s),
        tolerance=_tolerances(dtype),
    )


@case("flashinfer.cascade::merge_states")
def test_merge_states_of_no_state() -> Launch:
    """Fewer states than tokens: the kernel that has a branch for none."""
    import flashinfer

    (v,), (s,) = tensors("bfloat16", (5, 0, 3, 128)), tensors("float32", (5, 0, 3))

    def reference() -> list[Any]:
        return [v.new_zeros(5, 3, 128), s.new_full((5, 3), float("-inf"))]

    return Launch(
        run=lambda: flashinfer.merge_states(v, s),
        reference=reference,
        redraw=lambda seed: None,
        tolerance=EXACT,
        empty=True,
    )
