"""Copies and views."""

from __future__ import annotations

import pytest

from sm120_smoke.case import EXACT, Launch, case
from sm120_smoke.draw import Apart, integers, mark, marks, redraw, redraw_bytes, redraw_integers, tensors
from sm120_smoke.lazy import torch


@case("sgl_kernel::copy_to_gpu_no_ce")
@pytest.mark.parametrize("size", [32, 64, 72])
def test_copy_to_gpu_no_ce(size: int) -> Launch:
    drawn, out = integers((size,)), integers((size,))
    host = torch.zeros((size,), dtype=torch.int32)

    def run() -> object:
        torch.ops.sgl_kernel.copy_to_gpu_no_ce.default(host, out)
        return out

    def fill(seed: int) -> None:
        redraw_integers(seed, -(2**31), 2**31 - 1, drawn)
        host.copy_(drawn.cpu())

    return Launch(
        run=run,
        reference=lambda: host.to(out.device, copy=True),
        redraw=fill,
        tolerance=EXACT,
        no_graph="the values travel as kernel arguments, read on the host at launch: a replay repeats the old ones",
    )


@case("sgl_kernel::weak_ref_tensor")
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(1,), (17, 33), (3, 5, 64)])
def test_weak_ref_tensor(dtype: str, shape: tuple[int, ...]) -> Launch:
    x, out = tensors(dtype, shape, shape)

    def run() -> object:
        view = torch.ops.sgl_kernel.weak_ref_tensor.default(x)
        if view.data_ptr() != x.data_ptr():
            raise AssertionError("the weak reference does not point at the tensor's memory")
        out.view(torch.uint8).copy_(view.view(torch.uint8))
        return out.view(torch.uint8)

    return Launch(
        run=run,
        reference=lambda: x.view(torch.uint8).clone(),
        redraw=lambda seed: redraw_bytes(seed, x),
        tolerance=EXACT,
    )


@case("sgl_kernel::weak_ref_tensor")
@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_weak_ref_tensor_of_rows_apart(dtype: str) -> Launch:
    x, (out,) = Apart(dtype, (17, 33), 31), tensors(dtype, (17, 33))

    def run() -> object:
        view = torch.ops.sgl_kernel.weak_ref_tensor.default(x.rows)
        if (view.data_ptr(), view.stride()) != (x.rows.data_ptr(), x.rows.stride()):
            raise AssertionError("the weak reference does not lie in memory as the tensor does")
        out.copy_(view)
        return out

    def fill(seed: int) -> None:
        redraw(seed, x.rows, scale=16.0)
        mark(x.padding)

    return Launch(run=run, reference=lambda: x.rows.clone(), redraw=fill, tolerance=EXACT)


@case("sgl_kernel::concat_mla_k")
@pytest.mark.parametrize("tokens", [3, 257])
def test_concat_mla_k_apart(tokens: int) -> Launch:
    """Heads and tokens that lie apart in all three tensors."""
    key, nope = Apart("bfloat16", (tokens, 128, 192), 64), Apart("bfloat16", (tokens, 128, 128), 192)
    rope = Apart("bfloat16", (tokens, 1, 64), 64)
    aside = (key.padding, nope.padding, rope.padding)

    def run() -> object:
        torch.ops.sgl_kernel.concat_mla_k.default(key.rows, nope.rows, rope.rows)
        return key.rows, *aside

    def fill(seed: int) -> None:
        redraw(seed, nope.rows, rope.rows)
        mark(*aside)

    def reference() -> object:
        return torch.cat((nope.rows, rope.rows.expand(-1, 128, -1)), dim=-1), *marks(*aside)

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT)


@case("sgl_kernel::concat_mla_absorb_q")
@pytest.mark.parametrize(("tokens", "heads"), [(3, 128), (257, 16)])
def test_concat_mla_absorb_q_apart(tokens: int, heads: int) -> Launch:
    latent, rope = Apart("bfloat16", (tokens, heads, 512), 64), Apart("bfloat16", (tokens, heads, 64), 128)
    out = Apart("bfloat16", (tokens, heads, 576), 64)
    aside = (latent.padding, rope.padding, out.padding)

    def run() -> object:
        torch.ops.sgl_kernel.concat_mla_absorb_q.default(latent.rows, rope.rows, out.rows)
        return out.rows, *aside

    def fill(seed: int) -> None:
        redraw(seed, latent.rows, rope.rows)
        mark(*aside)

    def reference() -> object:
        return torch.cat((latent.rows, rope.rows), dim=-1), *marks(*aside)

    return Launch(run=run, reference=reference, redraw=fill, tolerance=EXACT)


@case("sgl_kernel::concat_mla_k")
@pytest.mark.parametrize("tokens", [1, 3, 257, 4099])
@pytest.mark.parametrize("padding", [0, 64])
def test_concat_mla_k(tokens: int, padding: int) -> Launch:
    # The kernel is written for DeepSeek's 128 heads of 128 + 64 elements, in bfloat16.
    key, rope = tensors("bfloat16", (tokens, 128, 192), (tokens, 1, 64))
    whole = tensors("bfloat16", (tokens, 128, 128 + padding))[0]
    nope = whole[:, :, :128]

    def run() -> object:
        torch.ops.sgl_kernel.concat_mla_k.default(key, nope, rope)
        return key.view(torch.int16)

    return Launch(
        run=run,
        reference=lambda: torch.cat((nope, rope.expand(-1, 128, -1)), dim=-1).view(torch.int16),
        redraw=lambda seed: redraw_bytes(seed, whole, rope),
        tolerance=EXACT,
    )


@case("sgl_kernel::concat_mla_absorb_q")
@pytest.mark.parametrize(("tokens", "heads"), [(1, 1), (3, 128), (257, 16), (4099, 8)])
def test_concat_mla_absorb_q(tokens: int, heads: int) -> Launch:
    latent, rope, out = tensors("bfloat16", (tokens, heads, 512), (tokens, heads, 64), (tokens, heads, 576))

    def run() -> object:
        torch.ops.sgl_kernel.concat_mla_absorb_q.default(latent, rope, out)
        return out.view(torch.int16)

    return Launch(
        run=run,
        reference=lambda: torch.cat((latent, rope), dim=-1).view(torch.int16),
        redraw=lambda seed: redraw_bytes(seed, latent, rope),
        tolerance=EXACT,
    )
