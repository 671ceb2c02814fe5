"""The selftest package's block-scaled operands, on the CPU: its header against CuTe's layouts and an emulated mma."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "recipes" / "selftest" / "source" / "csrc"
LANES = range(32)
PROGRAM = """
#include <cstdio>
#include "fragment.h"
using namespace selftest;
template <typename F> void words(const char* name) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kRegistersA; ++i) {
      Word w = word_of_a<F>(lane, i); std::printf("%s_a %d %d %d %d\\n", name, lane, i, w.line, w.k);
    }
    for (int i = 0; i < kRegistersB; ++i) {
      Word w = word_of_b<F>(lane, i); std::printf("%s_b %d %d %d %d\\n", name, lane, i, w.line, w.k);
    }
  }
}
int main() {
  words<Nvfp4>("nvfp4"); words<Mxfp8>("mxfp8");
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kRegistersD; ++i) {
      Element e = element_of_d(lane, i); std::printf("d %d %d %d %d\\n", lane, i, e.row, e.column);
    }
    std::printf("scale %d 0 %d %d\\n", lane, scale_row_of_a(lane), scale_column_of_b(lane));
  }
}
"""
Table = dict[tuple[int, int], tuple[int, int]]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    """What the kernels' own header says: table name, then (lane, register) to (line, k) or (row, column)."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("not run: no C++ compiler")
    folder = tmp_path_factory.mktemp("layout")
    (folder / "dump.cpp").write_text(PROGRAM)
    command = [compiler, "-std=c++17", "-I", str(CSRC), "dump.cpp", "-o", "dump"]
    subprocess.run(command, cwd=folder, check=True)
    output = subprocess.run([str(folder / "dump")], check=True, capture_output=True, text=True).stdout
    tables: dict[str, Table] = {}
    for line in output.splitlines():
        name, lane, register, first, second = line.split()
        tables.setdefault(name, {})[int(lane), int(register)] = (int(first), int(second))
    return tables


def cute(shape: tuple[int, ...], stride: tuple[int, ...], index: int) -> int:
    """CuTe's layout function: the index in mixed radix, leftmost digit fastest, times the strides."""
    total = 0
    for size, step in zip(shape, stride, strict=True):
        total += index % size * step
        index //= size
    return total


# (thread shape, thread stride, value shape, value stride, lines): coordinates are line + lines * k, as MMA_Traits for
# SM120_16x8x64_TN_VS and for SM80_16x8x32_S32S8S8S32_TN (whose layouts SM120_16x8x32_TN_VS takes) define them.
CUTE = {
    "nvfp4_a": ((4, 8), (128, 1), (8, 2, 2), (16, 8, 512), 16),
    "nvfp4_b": ((4, 8), (64, 1), (8, 2), (8, 256), 8),
    "mxfp8_a": ((4, 8), (64, 1), (4, 2, 2), (16, 8, 256), 16),
    "mxfp8_b": ((4, 8), (32, 1), (4, 2), (8, 128), 8),
}


def cute_element(name: str, lane: int, value: int) -> tuple[int, int]:
    thread_shape, thread_stride, value_shape, value_stride, lines = CUTE[name]
    flat = cute(thread_shape, thread_stride, lane) + cute(value_shape, value_stride, value)
    return flat % lines, flat // lines


@pytest.mark.parametrize("name", CUTE)
def test_every_register_holds_what_cute_says(kernel: dict[str, Table], name: str) -> None:
    per_register = 8 if name.startswith("nvfp4") else 4
    seen = set()
    for (lane, register), (line, k) in kernel[name].items():
        for j in range(per_register):
            assert (line, k + j) == cute_element(name, lane, register * per_register + j)
            seen.add((line, k + j))
    assert len(seen) == (16 if name.endswith("a") else 8) * (per_register * 8)


def test_the_result_lies_where_cute_says(kernel: dict[str, Table]) -> None:
    for (lane, register), (row, column) in kernel["d"].items():
        flat = cute((4, 8), (32, 1), lane) + cute((2, 2), (16, 8), register)
        assert (row, column) == (flat % 16, flat // 16)
    assert len(set(kernel["d"].values())) == 16 * 8


def test_scales_come_from_the_lanes_that_cute_says(kernel: dict[str, Table]) -> None:
    for lane in LANES:
        row, column = kernel["scale"][lane, 0]
        assert row == cute((2, 2, 8), (8, 0, 1), lane)
        assert column == cute((4, 8), (0, 1), lane)


@pytest.mark.parametrize(("kind", "bits", "k_tile", "per_scale"), [("nvfp4", 4, 64, 16), ("mxfp8", 8, 32, 32)])
def test_an_emulated_mma_on_the_kernels_words_gives_the_product(
    kernel: dict[str, Table], kind: str, bits: int, k_tile: int, per_scale: int
) -> None:
    """Packs as the package does, loads words as the kernel does, multiplies as CuTe's layouts say the hardware does."""
    source = random.Random(7)
    codes = {
        s: [[source.randrange(1 << bits) for _ in range(k_tile)] for _ in range(n)] for s, n in (("a", 16), ("b", 8))
    }
    scales = {
        s: [[source.randrange(1, 9) for _ in range(k_tile // per_scale)] for _ in range(n)]
        for s, n in (("a", 16), ("b", 8))
    }

    def packed(row: list[int]) -> bytes:
        return (
            bytes(row) if bits == 8 else bytes(low | high << 4 for low, high in zip(row[::2], row[1::2], strict=True))
        )

    held: dict[str, dict[tuple[int, int], int]] = {"a": {}, "b": {}}
    for side in "ab":
        per_register = 32 // bits
        for (lane, register), (line, k) in kernel[f"{kind}_{side}"].items():
            word = int.from_bytes(packed(codes[side][line])[k * bits // 8 :][:4], "little")
            for j in range(per_register):
                at = cute_element(f"{kind}_{side}", lane, register * per_register + j)
                held[side][at] = word >> bits * j & (1 << bits) - 1
    # Selectors 0: rows from the first two lanes of each four, columns from the first.
    row_scales = {
        lane // 4 + 8 * (lane % 2): scales["a"][kernel["scale"][lane, 0][0]] for lane in LANES if lane % 4 < 2
    }
    column_scales = {lane // 4: scales["b"][kernel["scale"][lane, 0][1]] for lane in LANES if lane % 4 == 0}
    for row, column in kernel["d"].values():
        emulated = sum(
            held["a"][row, k]
            * held["b"][column, k]
            * row_scales[row][k // per_scale]
            * column_scales[column][k // per_scale]
            for k in range(k_tile)
        )
        direct = sum(
            codes["a"][row][k]
            * codes["b"][column][k]
            * scales["a"][row][k // per_scale]
            * scales["b"][column][k // per_scale]
            for k in range(k_tile)
        )
        assert emulated == direct
