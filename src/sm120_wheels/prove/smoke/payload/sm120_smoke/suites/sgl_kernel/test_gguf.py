"""GGUF weights: dequantised, multiplied by vectors and matrices, and by tokens of a mixture of experts."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, NotRun, Tolerance, case
from sm120_smoke.draw import dtype_of, integers, redraw, redraw_bytes, redraw_integers, redraw_uniform, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import gguf as references
from sm120_smoke.references import moe
from sm120_smoke.tolerance import UNIT

FORMATS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
#: Only single vectors can be multiplied by these.
VECTOR_FORMATS = [*FORMATS, "iq4_nl", "iq4_xs"]
CODE_BOOKS = ["iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m"]
BLOCK = 4
"""Tokens of a block of ggml_moe_a8 on NVIDIA GPUs: its constants MOE_X_..., all the same."""


def _weights(form: references.Format, *shape: int) -> Any:
    """Bytes of rows of the last of the dimensions."""
    return integers((*shape[:-1], shape[-1] // form.elements * form.size), "uint8")


def _product(dtype: str, depth: int) -> Tolerance:
    return Tolerance(
        relative=UNIT[dtype],
        absolute=(0.015 + UNIT[dtype]) * depth**0.5,
        source="minima are multiplied by half-precision sums of the activations before they were rounded to 8 bits: "
        "an error of 0.3 steps of 3/127 for each of 32, times minima of about 1, at 4 standard deviations",
    )


@case("sgl_kernel::ggml_dequantize")
@pytest.mark.parametrize(
    ("dtype", "name"),
    [*(("float16", name) for name in VECTOR_FORMATS), ("bfloat16", "q4_0"), ("bfloat16", "q4_k"), ("float32", "q6_k")],
)
def test_ggml_dequantize(dtype: str, name: str) -> Launch:
    form = references.FORMATS[name]
    rows, columns = 77, 1024
    data = _weights(form, rows, columns)

    def run() -> object:
        return torch.ops.sgl_kernel.ggml_dequantize.default(data, form.number, rows, columns, dtype_of(dtype))

    return Launch(
        run=run,
        reference=lambda: references.dequantize(form, data),
        redraw=lambda seed: references.redraw_blocks(seed, form, data),
        tolerance=Tolerance(
            relative=UNIT[dtype],
            absolute=6 * UNIT["float16"],
            source="computed in half precision: at most three roundings of terms of at most 2, then to the dtype",
        ),
    )


def _matrix(operator: str, dtype: str, name: str, vectors: int, rows: int, columns: int) -> Launch:
    form = references.FORMATS[name]
    data = _weights(form, rows, columns)
    (x,) = tensors(dtype, (vectors, columns))
    launch = getattr(torch.ops.sgl_kernel, operator).default

    def fill(seed: int) -> None:
        references.redraw_blocks(seed, form, data)
        redraw(seed + 100, x)

    return Launch(
        run=lambda: launch(data, x, form.number, rows),
        reference=lambda: references.eight_bits(x) @ references.dequantize(form, data).t(),
        redraw=fill,
        tolerance=_product(dtype, columns),
    )


@case("sgl_kernel::ggml_mul_mat_vec_a8")
@pytest.mark.parametrize("name", VECTOR_FORMATS)
@pytest.mark.parametrize(("dtype", "vectors"), [("float16", 1), ("bfloat16", 5)])
def test_ggml_mul_mat_vec_a8(name: str, dtype: str, vectors: int) -> Launch:
    return _matrix("ggml_mul_mat_vec_a8", dtype, name, vectors, 333, 1024)


@case("sgl_kernel::ggml_mul_mat_a8")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("dtype", "vectors"), [("float16", 8), ("bfloat16", 513)])
def test_ggml_mul_mat_a8(name: str, dtype: str, vectors: int) -> Launch:
    return _matrix("ggml_mul_mat_a8", dtype, name, vectors, 333, 1024)


def _experts(form: references.Format, x: Any, data: Any, ids: Any) -> Any:
    """Each copy of a token times the weights of its expert."""
    tokens = references.eight_bits(x)
    weights = references.dequantize(form, data)
    return torch.einsum("td,tkrd->tkr", tokens, weights[ids.long()]).flatten(0, 1)


@case("sgl_kernel::ggml_moe_a8")
@pytest.mark.parametrize("name", FORMATS)
def test_ggml_moe_a8(name: str) -> Launch:
    form = references.FORMATS[name]
    tokens, topk, experts, rows, columns = 37, 2, 4, 96, 512
    data, ids = _weights(form, experts, rows, columns), integers((tokens, topk))
    (x,) = tensors("float16", (tokens, columns))
    room = (tokens * topk + experts * (BLOCK - 1) + BLOCK - 1) // BLOCK * BLOCK
    slots, owners, padded = integers((room,)), integers((room // BLOCK,)), integers((1,))

    def run() -> object:
        return torch.ops.sgl_kernel.ggml_moe_a8.default(x, data, slots, owners, padded, form.number, rows, topk, tokens)

    def fill(seed: int) -> None:
        references.redraw_blocks(seed, form, data)
        redraw(seed + 100, x)
        redraw_integers(seed + 200, 0, experts, ids)
        for target, source in zip((padded, owners, slots), moe.align(ids, BLOCK, experts, room), strict=True):
            target.copy_(source)

    return Launch(
        run=run,
        reference=lambda: _experts(form, x, data, ids),
        redraw=fill,
        tolerance=_product("float16", columns),
    )


@case("sgl_kernel::ggml_moe_a8_vec")
@pytest.mark.parametrize("name", VECTOR_FORMATS)
def test_ggml_moe_a8_vec(name: str) -> Launch:
    form = references.FORMATS[name]
    tokens, topk, experts, rows, columns = 5, 2, 4, 96, 512
    data, ids = _weights(form, experts, rows, columns), integers((tokens, topk))
    (x,) = tensors("bfloat16", (tokens, columns))

    def run() -> object:
        return torch.ops.sgl_kernel.ggml_moe_a8_vec.default(x, data, ids, topk, form.number, rows, tokens)

    def fill(seed: int) -> None:
        references.redraw_blocks(seed, form, data)
        redraw(seed + 100, x)
        redraw_integers(seed + 200, 0, experts, ids)

    return Launch(
        run=run,
        reference=lambda: _experts(form, x, data, ids),
        redraw=fill,
        tolerance=_product("bfloat16", columns),
    )


class _CodeBook:
    """Weights in a format whose code book is not known here, and what ``ggml_dequantize`` makes of them."""

    def __init__(self, name: str, *shape: int) -> None:
        self.form = references.CODE_BOOKS[name]
        self.data = _weights(self.form, *shape)
        self.shape = shape
        self.scale = torch.empty(*shape[:-1], shape[-1] // 256, dtype=torch.float16, device="cuda")

    def redraw(self, seed: int) -> None:
        redraw_bytes(seed, self.data)
        redraw_uniform(seed + 1, 0.5 / self.form.span, 1.0 / self.form.span, self.scale)
        references.set_scale(self.form, self.data, self.scale)

    def dequantised(self) -> Any:
        rows = self.data.flatten(0, -2)
        dequantize = torch.ops.sgl_kernel.ggml_dequantize.default
        return dequantize(rows, self.form.number, rows.shape[0], self.shape[-1], torch.float32).view(self.shape)


def _agrees(name: str, dtype: str, depth: int) -> Tolerance:
    absolute = (8 * UNIT["float16"] + UNIT[dtype]) * depth**0.5
    source = "half-precision factors of weights of at most 1, summed in float32 in another order, one rounding"
    if name == "iq1_s":
        # Its weights are scale × (0, 1 or 2, less about 1), and the kernel multiplies that constant by the sum of a
        # block's numbers as they were before they were rounded to eight bits: 6 sigma of a rounding of 2.2 / 127 at
        # each, with weights of 0.45 in the mean. All rows share it.
        absolute += 6 * 0.45 * (2.2 / 127) * (depth / 12) ** 0.5
        source += "; the constant part of a weight times a sum of unrounded numbers"
    return Tolerance(relative=2 * UNIT[dtype], absolute=absolute, source=source)


@case("sgl_kernel::ggml_dequantize")
@pytest.mark.parametrize("name", CODE_BOOKS)
def test_ggml_dequantize_code_books(name: str) -> Launch:
    """Twice the scale gives exactly twice the numbers. What the numbers are is not checked."""
    book = _CodeBook(name, 77, 1024)
    single = torch.empty(77, 1024, device="cuda")

    def fill(seed: int) -> None:
        book.redraw(seed)
        single.copy_(book.dequantised())
        references.set_scale(book.form, book.data, book.scale * 2)

    return Launch(run=book.dequantised, reference=lambda: single * 2, redraw=fill, tolerance=EXACT)


@case("sgl_kernel::ggml_mul_mat_vec_a8")
@pytest.mark.parametrize("name", CODE_BOOKS)
@pytest.mark.parametrize(("dtype", "vectors"), [("float16", 1), ("bfloat16", 5)])
def test_ggml_mul_mat_vec_a8_code_books(name: str, dtype: str, vectors: int) -> Launch:
    """Against the other operator's weights: the two decode in ways of their own."""
    book, depth = _CodeBook(name, 333, 1024), 1024
    (x,) = tensors(dtype, (vectors, depth))

    def fill(seed: int) -> None:
        book.redraw(seed)
        redraw(seed + 100, x)

    return Launch(
        run=lambda: torch.ops.sgl_kernel.ggml_mul_mat_vec_a8.default(book.data, x, book.form.number, 333),
        reference=lambda: references.eight_bits(x) @ book.dequantised().double().t(),
        redraw=fill,
        tolerance=_agrees(name, dtype, depth),
    )


@case("sgl_kernel::ggml_moe_a8_vec")
@pytest.mark.parametrize("name", CODE_BOOKS)
def test_ggml_moe_a8_vec_code_books(name: str) -> Launch:
    """Against the other operator's weights, as above."""
    tokens, topk, experts, rows, columns = 5, 2, 4, 96, 512
    book, ids = _CodeBook(name, experts, rows, columns), integers((tokens, topk))
    (x,) = tensors("bfloat16", (tokens, columns))

    def run() -> object:
        launch = torch.ops.sgl_kernel.ggml_moe_a8_vec.default
        return launch(x, book.data, ids, topk, book.form.number, rows, tokens)

    def reference() -> Any:
        weights = book.dequantised().double()[ids.long()]
        return torch.einsum("td,tkrd->tkr", references.eight_bits(x), weights).flatten(0, 1)

    def fill(seed: int) -> None:
        book.redraw(seed)
        redraw(seed + 100, x)
        redraw_integers(seed + 200, 0, experts, ids)

    return Launch(run=run, reference=reference, redraw=fill, tolerance=_agrees(name, "bfloat16", columns))


@case("sgl_kernel::ggml_moe_get_block_size")
def test_ggml_moe_get_block_size() -> Launch:
    raise NotRun("registered for CUDA tensors alone and takes none, so the dispatcher never chooses it")
