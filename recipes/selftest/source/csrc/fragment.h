// Which elements of a 16 x 8 tile each lane of a warp holds for the block-scaled mma instructions. Plain C++, so that
// tests can compile it without a GPU and compare it with two independent descriptions of the same layouts.
//
// Sources: PTX ISA 9.2, "Matrix Fragments for mma.m16n8k64", "... m16n8k32" and "Block Scaling for mma.sync"; CUTLASS,
// the layouts of MMA_Traits for SM120_16x8x64_TN_VS and SM120_16x8x32_TN_VS. Not yet seen running on an SM120 GPU.
#pragma once

#if defined(__CUDACC__)
#define SELFTEST_BOTH __host__ __device__ constexpr
#else
#define SELFTEST_BOTH constexpr
#endif

namespace selftest {

constexpr int kTileM = 16, kTileN = 8;
constexpr int kRegistersA = 4, kRegistersB = 2, kRegistersD = 4;

// Where one 32-bit register of a lane begins: `line` is the row of A or the column of B, and k the first of the
// elements that follow each other in it (low bits first).
struct Word {
  int line;
  int k;
};

struct Element {
  int row;
  int column;
};

// e2m1, m16n8k64: a register holds 8 elements of 4 bits; scales: one for 16 elements, 4 to a line.
struct Nvfp4 {
  static constexpr int kTileK = 64, kPerRegister = 8, kPerByte = 2, kPerScale = 16;
};

// e4m3, m16n8k32: a register holds 4 elements of 8 bits; scales: one for 32 elements, 1 to a line.
struct Mxfp8 {
  static constexpr int kTileK = 32, kPerRegister = 4, kPerByte = 1, kPerScale = 32;
};

template <typename Format>
SELFTEST_BOTH Word word_of_a(int lane, int index) {
  return {lane / 4 + 8 * (index % 2), lane % 4 * Format::kPerRegister + Format::kTileK / 2 * (index / 2)};
}

template <typename Format>
SELFTEST_BOTH Word word_of_b(int lane, int index) {
  return {lane / 4, lane % 4 * Format::kPerRegister + Format::kTileK / 2 * index};
}

SELFTEST_BOTH Element element_of_d(int lane, int index) {
  return {lane / 4 + 8 * (index / 2), lane % 4 * 2 + index % 2};
}

// The line whose scales a lane hands over, with thread-id and byte-id selectors 0. The instruction reads rows of A from
// the first two lanes of each group of four and columns of B from the first; the others hold the same again.
SELFTEST_BOTH int scale_row_of_a(int lane) { return lane / 4 + 8 * (lane % 2); }
SELFTEST_BOTH int scale_column_of_b(int lane) { return lane / 4; }

}  // namespace selftest
