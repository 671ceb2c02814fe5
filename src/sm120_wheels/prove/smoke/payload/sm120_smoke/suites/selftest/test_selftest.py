"""Our own selftest's operators, against references that are not the package's own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sm120_smoke.case import EXACT, Launch, Needs, Tolerance, case
from sm120_smoke.draw import redraw, tensors
from sm120_smoke.lazy import torch
from sm120_smoke.tolerance import UNIT, rounding

DTYPES = ["float32", "float16", "bfloat16"]
FP4 = Needs(capability=((10, 0), (10, 3), (11, 0), (12, 0), (12, 1)), why="no other GPU converts e2m1")
BLOCK_SCALED = Needs(capability=((12, 0), (12, 1)), why="mma with block scales is of SM120 and SM121")
#: Magnitudes of the e2m1 codes 0 to 7 (OCP Microscaling Formats 1.0).
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _ops() -> Any:
    return torch.ops.sm120_selftest


@case("sm120_selftest::rmsnorm")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (7, 4096), (128, 1000), (0, 32)])
def test_rmsnorm(dtype: str, rows: int, columns: int) -> Launch:
    x, weight = tensors(dtype, (rows, columns), (columns,))

    def reference() -> Any:
        wide = x.double()
        return (wide / (wide.pow(2).mean(1, keepdim=True) + 1e-6).sqrt() * weight.double()).to(x.dtype)

    return Launch(
        run=lambda: _ops().rmsnorm(x, weight, 1e-6),
        reference=reference,
        redraw=lambda seed: redraw(seed, x, weight),
        tolerance=rounding(dtype, roundings=2, float32_steps=32, source="a tree sum, rsqrt (2 ulp), two products"),
        empty=rows == 0,
    )


@case("sm120_selftest::silu_and_mul")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (33, 2048), (128, 1001), (0, 32)])
def test_silu_and_mul(dtype: str, rows: int, columns: int) -> Launch:
    (x,) = tensors(dtype, (rows, 2 * columns))

    def reference() -> Any:
        gate, value = x[:, :columns].double(), x[:, columns:].double()
        return (gate * torch.sigmoid(gate) * value).to(x.dtype)

    return Launch(
        run=lambda: _ops().silu_and_mul(x),
        reference=reference,
        redraw=lambda seed: redraw(seed, x),
        tolerance=rounding(dtype, roundings=2, float32_steps=16, source="expf (2 ulp), a sum, a quotient, a product"),
        empty=rows == 0,
    )


@case("sm120_selftest::row_sum")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (7, 4096), (300, 1001), (0, 32), (3, 0)])
def test_row_sum(dtype: str, rows: int, columns: int) -> Launch:
    (x,) = tensors(dtype, (rows, columns))
    steps = columns / 256 + 10
    source = "float32 additions in a row times the sum of about 0.8 * columns (Higham 4.2)"
    return Launch(
        run=lambda: _ops().row_sum(x),
        reference=lambda: x.double().sum(1).float(),
        redraw=lambda seed: redraw(seed, x),
        tolerance=Tolerance(absolute=steps * UNIT["float32"] * columns, source=source),
        empty=rows * columns == 0,
    )


def _normalised(x: Any) -> Any:
    wide = x.double()
    return (wide / wide.abs().sum(-1, keepdim=True)).float()


_NORMALISED = rounding(
    "float32", roundings=4, float32_steps=64, scale=0.0, source="a float32 sum of absolutes, a quotient"
)


@case("sm120_selftest::grid_normalize")
@pytest.mark.parametrize("count", [1, 1000, 1_000_003, 0])
def test_grid_normalize(count: int) -> Launch:
    (x,) = tensors("float32", (count,))
    return Launch(
        run=lambda: _ops().grid_normalize(x),
        reference=lambda: _normalised(x),
        redraw=lambda seed: redraw(seed, x),
        tolerance=_NORMALISED,
        empty=count == 0,
    )


@case("sm120_selftest::cluster_normalize", needs=Needs(least_capability=(9, 0), why="clusters"))
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (5, 1001), (130, 8192), (0, 8)])
def test_cluster_normalize(rows: int, columns: int) -> Launch:
    (x,) = tensors("float32", (rows, columns))
    return Launch(
        run=lambda: _ops().cluster_normalize(x),
        reference=lambda: _normalised(x),
        redraw=lambda seed: redraw(seed, x),
        tolerance=_NORMALISED,
        empty=rows == 0,
    )


@case("sm120_selftest::tma_scale", needs=Needs(least_capability=(9, 0), why="bulk copies"))
@pytest.mark.parametrize("count", [4, 1004, 1 << 20, 0])
def test_tma_scale(count: int) -> Launch:
    (x,) = tensors("float32", (count,))
    return Launch(
        run=lambda: _ops().tma_scale(x, 1.5),
        reference=lambda: (x.double() * 1.5).float(),
        redraw=lambda seed: redraw(seed, x),
        tolerance=EXACT,
        empty=count == 0,
    )


@case("sm120_selftest::fp8_quantize", needs=Needs(least_capability=(8, 9), why="e4m3"))
@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (33, 1002), (0, 2)])
def test_fp8_quantize(rows: int, columns: int) -> Launch:
    (x,) = tensors("float32", (rows, columns))
    return Launch(
        run=lambda: _ops().fp8_quantize(x).view(torch.float8_e4m3fn),
        reference=lambda: x.clamp(-448, 448).to(torch.float8_e4m3fn),
        redraw=lambda seed: redraw(seed, x, scale=100.0),
        tolerance=EXACT,
        empty=rows == 0,
    )


def _decoded(packed: Any) -> Any:
    """Two codes a byte, the low half first."""
    table = torch.tensor([*E2M1, *(-value for value in E2M1)], device=packed.device)
    halves = torch.stack([packed.long() % 16, packed.long() // 16], dim=-1)
    return table[halves].flatten(-2)


@case("sm120_selftest::fp4_quantize", needs=FP4)
@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (33, 1002), (0, 2)])
def test_fp4_quantize(rows: int, columns: int) -> Launch:
    (x,) = tensors("float32", (rows, columns))

    def reference() -> Any:
        table = torch.tensor(E2M1, device="cuda")
        nearest = (x.abs()[..., None] - table).abs().argmin(-1)  # no drawn number is a tie
        return table[nearest] * x.sign()

    return Launch(
        run=lambda: _decoded(_ops().fp4_quantize(x)),
        reference=reference,
        redraw=lambda seed: redraw(seed, x, scale=3.0),
        tolerance=EXACT,
        empty=rows == 0,
    )


@case("sm120_selftest::fp4_dequantize", needs=FP4)
@pytest.mark.parametrize(("rows", "bytes_"), [(1, 128), (33, 501), (0, 128)])
def test_fp4_dequantize(rows: int, bytes_: int) -> Launch:
    codes = torch.empty((rows, bytes_), dtype=torch.uint8, device="cuda")
    return Launch(
        run=lambda: _ops().fp4_dequantize(codes),
        reference=lambda: _decoded(codes).half(),
        redraw=lambda seed: _draw_bytes(seed, codes, tuple(range(256))),
        tolerance=EXACT,
        empty=rows == 0,
    )


def _draw_bytes(seed: int, into: Any, among: tuple[int, ...]) -> None:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    chosen = torch.randint(0, len(among), into.shape, generator=generator, device="cuda")
    into.copy_(torch.tensor(among, device="cuda")[chosen])


#: 0, 0.5, 1, -0.5, -1 as e2m1 in both halves of a byte, and as e4m3; scales of 1 and 2 as e4m3 and as e8m0. Every
#: product is a multiple of a quarter, so float32 sums are exact in any order.
_E2M1_CODES = tuple(low + 16 * high for low in (0, 1, 2, 9, 10) for high in (0, 1, 2, 9, 10))
_E4M3_CODES = (0x00, 0x30, 0x38, 0xB0, 0xB8)
_E4M3_SCALES, _E8M0_SCALES = (0x38, 0x40), (127, 128)


@case("sm120_selftest::{name}", needs=BLOCK_SCALED)
@pytest.mark.parametrize(("name", "per_byte", "block"), [("mma_nvfp4", 2, 16), ("mma_mxfp8", 1, 32)])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 64), (16, 8, 64), (37, 29, 256), (0, 8, 64), (16, 0, 64), (3, 5, 0)])
def test_block_scaled_product(name: str, per_byte: int, block: int, m: int, n: int, k: int) -> Launch:
    fp4 = name == "mma_nvfp4"
    a, b, a_scale, b_scale = (
        torch.empty(shape, dtype=torch.uint8, device="cuda")
        for shape in ((m, k // per_byte), (n, k // per_byte), (m, k // block), (n, k // block))
    )

    def draw(seed: int) -> None:
        for number, operand in enumerate((a, b)):
            _draw_bytes(seed * 10 + number, operand, _E2M1_CODES if fp4 else _E4M3_CODES)
        for number, scale in enumerate((a_scale, b_scale)):
            _draw_bytes(seed * 10 + 5 + number, scale, _E4M3_SCALES if fp4 else _E8M0_SCALES)

    def value(operand: Any, scale: Any) -> Any:
        plain = _decoded(operand) if fp4 else operand.view(torch.float8_e4m3fn).float()
        each = scale.view(torch.float8_e4m3fn).float() if fp4 else torch.exp2(scale.float() - 127)
        return plain.double() * each.double().repeat_interleave(block, dim=1)

    return Launch(
        run=lambda: getattr(_ops(), name)(a, b, a_scale, b_scale),
        reference=lambda: (value(a, a_scale) @ value(b, b_scale).T).float(),
        redraw=draw,
        tolerance=EXACT,
        may_be_zero=m * n == 1,
        empty=m * n * k == 0,
    )


@case("sm120_selftest::build_info")
def test_build_info() -> Launch:
    """It names the architectures that it was built for, and the torch that is here."""

    def run() -> list[Any]:
        info = json.loads(_ops().build_info())
        version = str(info["torch"]).partition("+")[0] == str(torch.__version__).partition("+")[0]
        return [bool(info["archs"]), version]

    return Launch(
        run=run,
        reference=lambda: [True, True],
        redraw=lambda seed: None,
        tolerance=EXACT,
        no_graph="it answers on the host",
    )


@case(
    "sm120_selftest::pinned_near_gpu",
    "sm120_selftest::memory_numa_node",
    "sm120_selftest::gpu_numa_node",
    "sm120_selftest::numa_node_count",
)
def test_pinned_near_gpu() -> Launch:
    """Page-locked memory on the GPU's own NUMA node, used for a copy each way."""
    ops, size = _ops(), 1 << 20
    memory = ops.pinned_near_gpu(size, torch.cuda.current_device())
    (x,) = tensors("float32", (size // 4,))

    def run() -> list[Any]:
        again = ops.pinned_near_gpu(4096, torch.cuda.current_device())
        here, node = ops.memory_numa_node(again), ops.gpu_numa_node(torch.cuda.current_device())
        staged = memory.view(torch.float32)
        staged.copy_(x)
        several = ops.numa_node_count() > 1
        right = node < 0 or not several or here == node
        return [staged.to("cuda"), right]

    return Launch(
        run=run,
        reference=lambda: [x.clone(), True],
        redraw=lambda seed: redraw(seed, x),
        tolerance=EXACT,
        no_graph="it allocates page-locked memory",
        keep=(memory,),
    )
