"""flashinfer's norms, by the CUDA kernels of the wheel and not by its run-time compiler."""

from __future__ import annotations

from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Tolerance, case
from sm120_smoke.draw import Apart, dtype_of, mark, marks, redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.references import flashinfer_math as math
from sm120_smoke.tolerance import UNIT, rounding

EPS = 1e-6
DTYPES = ["float16", "bfloat16"]
SHAPES = [(1, 128), (19, 111), (99, 4096), (1027, 1536)]
_SOURCE = "one rounding to dtype; float32 tree sum, rsqrt, two products"
#: Both sides round to the same 8-bit format; a float32 difference just beside a tie goes to the neighbour: one step of
#: the format, which is twice the error of a rounding.
_FP8_SOURCE = "float32 noise beside a tie rounds to the neighbour: one step of the format, on few elements"


_BLOCK_OF_FP8 = Tolerance(
    relative=1.5 * UNIT["float8_e4m3fn"],
    absolute=2.0**-9,
    source="one rounding to e4m3 after one to dtype; below its normal numbers half a step of 2**-9 times the scale",
)


def _norm() -> Any:
    """flashinfer.norm without the kernels that are compiled at run time."""
    import flashinfer

    flashinfer.norm._USE_CUDA_NORM = True
    return flashinfer.norm


def _fp8_tolerance(dtype: str) -> Tolerance:
    return Tolerance(relative=2.5 * UNIT[dtype], absolute=2.0**-8, source=_FP8_SOURCE)


@case("flashinfer.norm::{name}")
@pytest.mark.parametrize("name", ["rmsnorm", "gemma_rmsnorm"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_rmsnorm(name: str, dtype: str, rows: int, hidden: int) -> Launch:
    norm = _norm()
    x, weight, out = tensors(dtype, (rows, hidden), (hidden,), (rows, hidden))
    bias = 1.0 if name.startswith("gemma") else 0.0
    return Launch(
        run=lambda: getattr(norm, name)(x, weight, EPS, out=out),
        reference=lambda: math.rmsnorm(x, weight, EPS, bias=bias).to(x.dtype),
        redraw=lambda seed: redraw(seed, x, weight),
        tolerance=rounding(dtype, roundings=2, float32_steps=32, source=_SOURCE),
    )


@case("flashinfer.norm::rmsnorm")
@pytest.mark.parametrize("dtype", DTYPES)
def test_rmsnorm_of_a_slice_and_of_heads(dtype: str) -> Launch:
    """Rows further apart than they are long, and the three-dimensional form for query and key heads."""
    norm = _norm()
    wide, weight, heads = tensors(dtype, (33, 640), (128,), (17, 5, 128))
    x = wide[:, 256:384]

    def reference() -> list[Any]:
        return [math.rmsnorm(t, weight, EPS).to(t.dtype) for t in (x, heads)]

    return Launch(
        run=lambda: [norm.rmsnorm(x, weight, EPS), norm.rmsnorm(heads, weight, EPS)],
        reference=reference,
        redraw=lambda seed: redraw(seed, wide, weight, heads),
        tolerance=rounding(dtype, roundings=2, float32_steps=32, source=_SOURCE),
    )


@case("flashinfer.norm::{name}")
@pytest.mark.parametrize("name", ["fused_add_rmsnorm", "gemma_fused_add_rmsnorm"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
def test_fused_add_rmsnorm(name: str, dtype: str, rows: int, hidden: int) -> Launch:
    norm = _norm()
    x, residual, first_x, first_residual, weight = tensors(dtype, *[(rows, hidden)] * 4, (hidden,))
    bias = 1.0 if name.startswith("gemma") else 0.0

    def run() -> list[Any]:
        x.copy_(first_x)  # it changes both in place
        residual.copy_(first_residual)
        getattr(norm, name)(x, residual, weight, EPS)
        return [x, residual]

    def reference() -> list[Any]:
        total = first_x.double() + first_residual.double()
        return [math.rmsnorm(total, weight, EPS, bias=bias).to(x.dtype), total.to(x.dtype)]

    return Launch(
        run=run,
        reference=reference,
        redraw=lambda seed: redraw(seed, first_x, first_residual, weight),
        tolerance=rounding(dtype, roundings=2, float32_steps=32, source=_SOURCE),
    )


@case("flashinfer.norm::{name}")
@pytest.mark.parametrize("name", ["rmsnorm_quant", "fused_add_rmsnorm_quant"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantised", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 128), (17, 4096)])
def test_rmsnorm_quant(name: str, dtype: str, quantised: str, rows: int, hidden: int) -> Launch:
    norm = _norm()
    first_x, first_residual, residual, weight = tensors(dtype, *[(rows, hidden)] * 3, (hidden,))
    out = torch.empty((rows, hidden), dtype=dtype_of(quantised), device="cuda")
    scale = torch.full((1,), 0.25, device="cuda")
    fused = name.startswith("fused")

    def run() -> list[Any]:
        if not fused:
            norm.rmsnorm_quant(out, first_x, weight, scale, EPS)
            return [out]
        residual.copy_(first_residual)
        norm.fused_add_rmsnorm_quant(out, first_x, residual, weight, scale, EPS)
        return [out, residual]

    def reference() -> list[Any]:
        total = first_x.double() + first_residual.double() if fused else first_x.double()
        wanted = math.to_fp8(math.rmsnorm(total, weight, EPS) / scale.double(), out.dtype)
        return [wanted, total.to(first_x.dtype)] if fused else [wanted]

    both = [_fp8_tolerance(quantised), rounding(dtype, roundings=2, source="one rounding to dtype")]
    return Launch(
        run=run,
        reference=reference,
        redraw=lambda seed: redraw(seed, first_x, first_residual, weight),
        tolerance=both if fused else both[:1],
    )


@case("flashinfer.norm::fused_add_rmsnorm_fp8_block_quant")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 256), (7, 4096), (130, 8704)])
def test_fused_add_rmsnorm_fp8_block_quant(dtype: str, rows: int, hidden: int) -> Launch:
    """One scale for each 128 values; what is compared is what they stand for together."""
    norm = _norm()
    x, first_residual, residual, normed, weight = tensors(dtype, *[(rows, hidden)] * 4, (hidden,))
    out = torch.empty((rows, hidden), dtype=torch.float8_e4m3fn, device="cuda")
    scales = torch.empty((hidden // 128, (rows + 3) // 4 * 4), device="cuda")

    def run() -> list[Any]:
        residual.copy_(first_residual)
        norm.fused_add_rmsnorm_fp8_block_quant(out, scales, normed, x, residual, weight, EPS)
        each = scales.transpose(0, 1)[:rows].repeat_interleave(128, dim=1)
        return [out.float() * each, normed, residual]

    def reference() -> list[Any]:
        total = x.double() + first_residual.double()
        wanted = math.rmsnorm(total, weight, EPS)
        return [wanted.float(), wanted.to(x.dtype), total.to(x.dtype)]

    half = rounding(dtype, roundings=2, float32_steps=32, source=_SOURCE)
    return Launch(
        run=run,
        reference=reference,
        redraw=lambda seed: redraw(seed, x, first_residual, weight),
        tolerance=[_BLOCK_OF_FP8, half, half],
    )


@case("flashinfer.norm::layernorm")
@pytest.mark.parametrize(("rows", "hidden"), [(1, 128), (17, 1024), (257, 4096)])
def test_layernorm(rows: int, hidden: int) -> Launch:
    norm = _norm()
    (x,) = tensors("bfloat16", (rows, hidden))
    gamma, beta = tensors("float32", (hidden,), (hidden,))
    return Launch(
        run=lambda: norm.layernorm(x, gamma, beta, EPS),
        reference=lambda: math.layernorm(x, gamma, beta, EPS).to(x.dtype),
        redraw=lambda seed: redraw(seed, x, gamma, beta),
        tolerance=rounding("bfloat16", roundings=2, float32_steps=64, scale=4.0, source=_SOURCE),
    )


@case("flashinfer.norm::layernorm_quant")
@pytest.mark.parametrize("quantised", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 128), (17, 4096)])
def test_layernorm_quant(quantised: str, rows: int, hidden: int) -> Launch:
    norm = _norm()
    (x,) = tensors("bfloat16", (rows, hidden))
    gamma, beta = tensors("float32", (hidden,), (hidden,))
    out = torch.empty((rows, hidden), dtype=dtype_of(quantised), device="cuda")
    scale = torch.full((1,), 0.25, device="cuda")

    def run() -> Any:
        norm.layernorm_quant(out, x, gamma, beta, scale, EPS)
        return out

    return Launch(
        run=run,
        reference=lambda: math.to_fp8(math.layernorm(x, gamma, beta, EPS) / scale.double(), out.dtype),
        redraw=lambda seed: redraw(seed, x, gamma, beta),
        tolerance=_fp8_tolerance(quantised),
    )


def _apart(
    tested: tuple[Apart, ...], run: Any, wanted: Any, drawn: tuple[Any, ...], tolerance: list[Tolerance]
) -> Launch:
    """``run`` and ``wanted`` give the results; the marks between the rows of all ``tested`` tensors are results too."""
    aside = [each.padding for each in tested]

    def fill(seed: int) -> None:
        redraw(seed, *drawn)
        mark(*aside)

    return Launch(
        run=lambda: [*run(), *aside],
        reference=lambda: [*wanted(), *marks(*aside)],
        redraw=fill,
        tolerance=[*tolerance, *[EXACT] * len(aside)],
    )


@case("flashinfer.norm::{name}")
@pytest.mark.parametrize(
    ("name", "shape"), [("rmsnorm", (33, 512)), ("gemma_rmsnorm", (33, 512)), ("rmsnorm", (17, 5, 128))]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rmsnorm_rows_apart(name: str, shape: tuple[int, ...], dtype: str) -> Launch:
    norm, (weight,) = _norm(), tensors(dtype, shape[-1:])
    x, out = Apart(dtype, shape, 64), Apart(dtype, shape, 128)
    bias = 1.0 if name.startswith("gemma") else 0.0
    return _apart(
        (x, out),
        lambda: [getattr(norm, name)(x.rows, weight, EPS, out=out.rows)],
        lambda: [math.rmsnorm(x.rows, weight, EPS, bias=bias).to(weight.dtype)],
        (x.rows, weight),
        [rounding(dtype, roundings=2, float32_steps=32, source=_SOURCE)],
    )


@case("flashinfer.norm::{name}")
@pytest.mark.parametrize("name", ["fused_add_rmsnorm", "gemma_fused_add_rmsnorm"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_add_rmsnorm_rows_apart(name: str, dtype: str) -> Launch:
    norm, (weight,) = _norm(), tensors(dtype, (512,))
    x, residual = Apart(dtype, (33, 512), 64), Apart(dtype, (33, 512), 128)
    bias = 1.0 if name.startswith("gemma") else 0.0

    def run() -> list[Any]:
        getattr(norm, name)(x.rows, residual.rows, weight, EPS)
        return [x.rows, residual.rows]

    def wanted() -> list[Any]:
        total = x.rows.double() + residual.rows.double()
        return [math.rmsnorm(total, weight, EPS, bias=bias).to(weight.dtype), total.to(weight.dtype)]

    both = [rounding(dtype, roundings=2, float32_steps=32, source=_SOURCE)] * 2
    return _apart((x, residual), run, wanted, (x.rows, residual.rows, weight), both)


@case("flashinfer.norm::{name}")
@pytest.mark.parametrize("name", ["rmsnorm_quant", "fused_add_rmsnorm_quant"])
@pytest.mark.parametrize("quantised", ["float8_e4m3fn", "float8_e5m2"])
def test_rmsnorm_quant_rows_apart(name: str, quantised: str) -> Launch:
    norm, (weight,) = _norm(), tensors("bfloat16", (512,))
    x, residual = Apart("bfloat16", (33, 512), 64), Apart("bfloat16", (33, 512), 128)
    out, scale = Apart(quantised, (33, 512), 192), torch.full((1,), 0.25, device="cuda")
    fused = name.startswith("fused")

    def run() -> list[Any]:
        if fused:
            norm.fused_add_rmsnorm_quant(out.rows, x.rows, residual.rows, weight, scale, EPS)
        else:
            norm.rmsnorm_quant(out.rows, x.rows, weight, scale, EPS)
        return [out.rows, residual.rows]

    def wanted() -> list[Any]:
        total = x.rows.double() + residual.rows.double()
        normed = math.rmsnorm(total if fused else x.rows.double(), weight, EPS) / scale.double()
        return [math.to_fp8(normed, out.rows.dtype), total.to(weight.dtype) if fused else residual.rows.clone()]

    both = [_fp8_tolerance(quantised), rounding("bfloat16", roundings=2, source="one rounding to dtype")]
    return _apart((x, residual, out), run, wanted, (x.rows, residual.rows, weight), both)


@case("flashinfer.norm::fused_add_rmsnorm_fp8_block_quant")
@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_add_rmsnorm_fp8_block_quant_rows_apart(dtype: str) -> Launch:
    norm, rows, hidden = _norm(), 33, 512
    x, residual, normed = (Apart(dtype, (rows, hidden), padding) for padding in (64, 128, 192))
    out, (weight,) = Apart("float8_e4m3fn", (rows, hidden), 256), tensors(dtype, (hidden,))
    scales = torch.empty((hidden // 128, (rows + 3) // 4 * 4), device="cuda")

    def run() -> list[Any]:
        norm.fused_add_rmsnorm_fp8_block_quant(out.rows, scales, normed.rows, x.rows, residual.rows, weight, EPS)
        each = scales.transpose(0, 1)[:rows].repeat_interleave(128, dim=1)
        return [out.rows.float() * each, normed.rows, residual.rows]

    def wanted() -> list[Any]:
        total = x.rows.double() + residual.rows.double()
        result = math.rmsnorm(total, weight, EPS)
        return [result.float(), result.to(weight.dtype), total.to(weight.dtype)]

    half = rounding(dtype, roundings=2, float32_steps=32, source=_SOURCE)
    return _apart((x, residual, normed, out), run, wanted, (x.rows, residual.rows, weight), [_BLOCK_OF_FP8, half, half])


@case("flashinfer.norm::layernorm")
def test_layernorm_rows_apart() -> Launch:
    norm, x = _norm(), Apart("bfloat16", (33, 1024), 64)
    gamma, beta = tensors("float32", (1024,), (1024,))
    return _apart(
        (x,),
        lambda: [norm.layernorm(x.rows, gamma, beta, EPS)],
        lambda: [math.layernorm(x.rows, gamma, beta, EPS).to(x.rows.dtype)],
        (x.rows, gamma, beta),
        [rounding("bfloat16", roundings=2, float32_steps=64, scale=4.0, source=_SOURCE)],
    )
