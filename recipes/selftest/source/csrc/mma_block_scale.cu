// The tensor core instructions with block scales, which of all GPUs only SM120's family has in this (warp-level) form.
// One warp computes one 16 x 8 tile of the result, straight from global memory: plain, because it is a test of the
// instruction and of its operands' layout, not of speed.
// Source: PTX ISA, "mma" (.kind::mxf4nvf4, .kind::mxf8f6f4, .block_scale: sm_120a, and sm_120f from PTX ISA 8.8 on).

#include "fragment.h"
#include "kernels.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM120_ALL) && !defined(__CUDA_ARCH_FEAT_SM121_ALL) && \
    !(defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ / 10 == 120) &&                   \
    !(defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ / 10 == 121)
#error "mma_block_scale.cu is only for sm_120a, sm_120f, sm_121a and sm_121f: CMakeLists.txt must leave it out of this one"
#endif

namespace selftest {
namespace {

__device__ void multiply(
    Nvfp4, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t a_scale, uint32_t b_scale) {
  constexpr uint16_t byte_id = 0, thread_id = 0;
  asm volatile(
      "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, {%12, %13}, %11, {%12, %13};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_scale), "r"(b_scale), "n"(byte_id),
        "n"(thread_id));
}

__device__ void multiply(
    Mxfp8, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t a_scale, uint32_t b_scale) {
  constexpr uint16_t byte_id = 0, thread_id = 0;
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, {%12, %13}, %11, {%12, %13};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_scale), "r"(b_scale), "n"(byte_id),
        "n"(thread_id));
}

// The four bytes of a register, from a row-major matrix of `bytes_per_line` bytes a line. Lines at or beyond `lines`
// read as zero, so that a result's last tile may be ragged.
__device__ uint32_t load_word(const uint8_t* matrix, int line, int lines, int64_t bytes_per_line, int64_t byte) {
  if (line >= lines) return 0;
  return *reinterpret_cast<const uint32_t*>(matrix + line * bytes_per_line + byte);
}

// The scales of one line for one step over k: four bytes for nvfp4, one (in the low byte) for mxfp8.
__device__ uint32_t load_scales(Nvfp4, const uint8_t* scales, int line, int lines, int64_t per_line, int64_t first) {
  return load_word(scales, line, lines, per_line, first);
}
__device__ uint32_t load_scales(Mxfp8, const uint8_t* scales, int line, int lines, int64_t per_line, int64_t first) {
  return line < lines ? scales[line * per_line + first] : 0;
}

template <typename Format>
__global__ void __launch_bounds__(32) mma_kernel(
    const uint8_t* a, const uint8_t* b, const uint8_t* a_scale, const uint8_t* b_scale, float* out, int m, int n,
    int k) {
  const int lane = static_cast<int>(threadIdx.x);
  const int row0 = static_cast<int>(blockIdx.x) * kTileM, column0 = static_cast<int>(blockIdx.y) * kTileN;
  const int64_t bytes = k / Format::kPerByte, scales = k / Format::kPerScale;
  float d[kRegistersD] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int k0 = 0; k0 < k; k0 += Format::kTileK) {
    uint32_t a_words[kRegistersA], b_words[kRegistersB];
    for (int i = 0; i < kRegistersA; ++i) {
      const Word word = word_of_a<Format>(lane, i);
      a_words[i] = load_word(a, row0 + word.line, m, bytes, (k0 + word.k) / Format::kPerByte);
    }
    for (int i = 0; i < kRegistersB; ++i) {
      const Word word = word_of_b<Format>(lane, i);
      b_words[i] = load_word(b, column0 + word.line, n, bytes, (k0 + word.k) / Format::kPerByte);
    }
    const int64_t first = k0 / Format::kPerScale;
    multiply(
        Format{}, d, a_words, b_words,
        load_scales(Format{}, a_scale, row0 + scale_row_of_a(lane), m, scales, first),
        load_scales(Format{}, b_scale, column0 + scale_column_of_b(lane), n, scales, first));
  }
  for (int i = 0; i < kRegistersD; ++i) {
    const Element at = element_of_d(lane, i);
    const int row = row0 + at.row, column = column0 + at.column;
    if (row < m && column < n) out[static_cast<int64_t>(row) * n + column] = d[i];
  }
}

template <typename Format>
cudaError_t launch(
    const uint8_t* a, const uint8_t* b, const uint8_t* a_scale, const uint8_t* b_scale, float* out, int m, int n,
    int k, cudaStream_t stream) {
  const dim3 grid((m + kTileM - 1) / kTileM, (n + kTileN - 1) / kTileN);
  mma_kernel<Format><<<grid, 32, 0, stream>>>(a, b, a_scale, b_scale, out, m, n, k);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_mma_nvfp4(
    const uint8_t* a, const uint8_t* b, const uint8_t* a_scale, const uint8_t* b_scale, float* out, int m, int n,
    int k, cudaStream_t stream) {
  return launch<Nvfp4>(a, b, a_scale, b_scale, out, m, n, k, stream);
}

cudaError_t launch_mma_mxfp8(
    const uint8_t* a, const uint8_t* b, const uint8_t* a_scale, const uint8_t* b_scale, float* out, int m, int n,
    int k, cudaStream_t stream) {
  return launch<Mxfp8>(a, b, a_scale, b_scale, out, m, n, k, stream);
}

}  // namespace selftest
