"""Causal convolutions of state-space models: whole sequences, and one step of a decode."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import Launch, case
from sm120_smoke.draw import Apart, mark, marks, redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import mamba as references
from sm120_smoke.tolerance import EXACT, FAST_STEPS, rounding

SOURCE = "float32 sum of at most five terms, exp and division (fast), one rounding to the dtype"
PADDING = -1
"""The slot of a sequence that is none: it must stay as it is."""


@case("sgl_kernel::causal_conv1d_fwd")
@pytest.mark.parametrize(
    ("dtype", "width", "silu", "biased"),
    [("float16", 2, False, False), ("float32", 3, True, True), ("bfloat16", 4, True, True)],
)
@pytest.mark.parametrize(("batch", "dim", "length"), [(1, 64, 1), (2, 96, 1024), (3, 33, 2057)])
def test_causal_conv1d_fwd(
    dtype: str, width: int, silu: bool, biased: bool, batch: int, dim: int, length: int
) -> Launch:
    x, weight = tensors(dtype, (batch, dim, length), (dim, width))
    bias = tensors(dtype, (dim,))[0] if biased else None

    def run() -> object:
        torch.ops.sgl_kernel.causal_conv1d_fwd.default(x, weight, bias, None, None, None, None, silu, PADDING)
        return x

    def reference() -> object:
        empty = torch.zeros((batch, dim, width - 1), dtype=x.dtype, device="cuda")
        return references.convolve(x, empty, weight, bias, silu=silu)

    return Launch(
        run=run,
        reference=reference,
        redraw=lambda seed: redraw(seed, x, weight, *(() if bias is None else (bias,))),
        tolerance=rounding(dtype, float32_steps=FAST_STEPS, scale=8, source=SOURCE),
    )


@case("sgl_kernel::causal_conv1d_fwd")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("batch", "dim", "length", "padding"), [(2, 96, 1024, 8), (3, 33, 2057, 3)])
def test_causal_conv1d_fwd_channels_apart(dtype: str, batch: int, dim: int, length: int, padding: int) -> Launch:
    """In place; the first takes vectors of 16 bytes, the other one element at a time."""
    x, (weight, bias) = Apart(dtype, (batch, dim, length), padding), tensors(dtype, (dim, 4), (dim,))

    def run() -> object:
        torch.ops.sgl_kernel.causal_conv1d_fwd.default(x.rows, weight, bias, None, None, None, None, True, PADDING)
        return x.rows, x.padding

    def reference() -> object:
        empty = torch.zeros((batch, dim, 3), dtype=x.rows.dtype, device="cuda")
        return references.convolve(x.rows, empty, weight, bias, silu=True), *marks(x.padding)

    def fill(seed: int) -> None:
        redraw(seed, x.rows, weight, bias)
        mark(x.padding)

    rounded = rounding(dtype, float32_steps=FAST_STEPS, scale=8, source=SOURCE)
    return Launch(run=run, reference=reference, redraw=fill, tolerance=(rounded, EXACT))


@case("sgl_kernel::causal_conv1d_fwd")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("width", "padding"), [(2, 0), (4, 0), (4, 5)])
def test_causal_conv1d_fwd_sequences_of_different_length(dtype: str, width: int, padding: int) -> Launch:
    """Sequences side by side, with states of earlier calls for some, and one that is padding."""
    lengths, dim = (7, 1, 1030, 2, 513, 5), 64
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    slots = (3, 0, 5, PADDING, 1, 6)
    known = (True, False, True, False, False, True)
    weight, bias = tensors(dtype, (dim, width), (dim,))
    wide, kept_wide = Apart(dtype, (dim, sum(lengths)), padding), Apart(dtype, (8, dim, width - 1), padding)
    x, states, aside = wide.rows, kept_wide.rows, (wide.padding, kept_wide.padding) if padding else ()
    bounds = torch.tensor(starts, dtype=torch.int32, device="cuda")
    indices, initial = torch.tensor(slots, dtype=torch.int32, device="cuda"), torch.tensor(known, device="cuda")

    def run() -> object:
        torch.ops.sgl_kernel.causal_conv1d_fwd.default(x, weight, bias, states, bounds, indices, initial, True, PADDING)
        return x, states, *aside

    def reference() -> object:
        done, kept = x.double(), states.clone()
        for i, slot in enumerate(slots):
            if slot == PADDING:
                continue
            part = x[:, starts[i] : starts[i + 1]]
            state = states[slot] if known[i] else torch.zeros_like(states[slot])
            done[:, starts[i] : starts[i + 1]] = references.convolve(part, state, weight, bias, silu=True)
            kept[slot] = references.last(part, state)
        return done, kept, *marks(*aside)

    def fill(seed: int) -> None:
        redraw(seed, x, weight, bias, states)
        mark(*aside)

    rounded = rounding(dtype, float32_steps=FAST_STEPS, scale=8, source=SOURCE)
    return Launch(run=run, reference=reference, redraw=fill, tolerance=(rounded, EXACT, *[EXACT] * len(aside)))


@case("sgl_kernel::causal_conv1d_update")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("width", "kept", "length", "silu", "picked", "padding"),
    [
        (2, 1, 1, False, False, 0),
        (4, 3, 1, True, True, 0),
        (4, 3, 3, True, False, 0),
        (3, 5, 2, True, True, 0),
        (4, 4, 2, True, True, 3),
    ],
)
def test_causal_conv1d_update(
    dtype: str, width: int, kept: int, length: int, silu: bool, picked: bool, padding: int
) -> Launch:
    batch, dim, slots = 33, 200, 40
    weight, bias = tensors(dtype, (dim, width), (dim,))
    wide = Apart(dtype, (batch, dim, length), padding)
    kept_wide = Apart(dtype, (slots if picked else batch, dim, kept), padding)
    x, states, aside = wide.rows, kept_wide.rows, (wide.padding, kept_wide.padding) if padding else ()
    chosen = [PADDING if i == 5 else (i * 7) % slots for i in range(batch)] if picked else list(range(batch))
    indices = torch.tensor(chosen, dtype=torch.int32, device="cuda") if picked else None

    def run() -> object:
        torch.ops.sgl_kernel.causal_conv1d_update.default(x, states, weight, bias, silu, None, indices, PADDING)
        return x, states, *aside

    def reference() -> object:
        rows = torch.tensor([i for i, slot in enumerate(chosen) if slot != PADDING], device="cuda")
        places = torch.tensor([slot for slot in chosen if slot != PADDING], device="cuda")
        state = states[places]
        done: Any = x.double()
        done[rows] = references.convolve(x[rows], state[..., kept - width + 1 :], weight, bias, silu=silu)
        after = states.clone()
        after[places] = references.last(x[rows], state)
        return done, after, *marks(*aside)

    def fill(seed: int) -> None:
        redraw(seed, x, weight, bias, states)
        mark(*aside)

    rounded = rounding(dtype, float32_steps=FAST_STEPS, scale=8, source=SOURCE)
    return Launch(run=run, reference=reference, redraw=fill, tolerance=(rounded, EXACT, *[EXACT] * len(aside)))
