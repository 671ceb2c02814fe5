// The launch functions of the kernels, in plain C++: no torch here and none in the .cu files, which keeps each of them a
// few seconds of compile time. Pointers are device memory of the current device, contiguous, checked by ops.cpp; each
// returns what the CUDA runtime answered to the launch.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace selftest {

enum class Float { f32, f16, bf16 };

// plain.cu
cudaError_t launch_rmsnorm(
    Float type, const void* x, const void* weight, void* out, int64_t rows, int columns, float eps, cudaStream_t);
// x is [rows, 2 * columns]: gate then value.
cudaError_t launch_silu_and_mul(Float type, const void* x, void* out, int64_t rows, int columns, cudaStream_t);
cudaError_t launch_row_sum(Float type, const void* x, float* out, int64_t rows, int columns, cudaStream_t);

// grid_sync.cu
constexpr int kGridSyncMaxBlocks = 1024;
// out = x / sum(|x|); partials holds kGridSyncMaxBlocks floats.
cudaError_t launch_grid_normalize(
    const float* x, float* out, float* partials, int64_t count, int device, cudaStream_t);

// cluster.cu
constexpr int kClusterBlocks = 4;
// Each row of [rows, columns] divided by its sum of absolute values; one cluster of four blocks a row.
cudaError_t launch_cluster_normalize(const float* x, float* out, int64_t rows, int columns, cudaStream_t);

// tma_bulk.cu
// out = x * factor; count is a multiple of 4 and both pointers are 16-byte aligned.
cudaError_t launch_tma_scale(const float* x, float* out, int64_t count, float factor, cudaStream_t);

// fp8_convert.cu; count is even.
cudaError_t launch_fp8_quantize(const float* x, uint8_t* out, int64_t count, cudaStream_t);

// fp4_convert.cu; two e2m1 codes a byte, the element with the even index in the low half; count is even.
cudaError_t launch_fp4_quantize(const float* x, uint8_t* out, int64_t count, cudaStream_t);
cudaError_t launch_fp4_dequantize(const uint8_t* x, void* out_f16, int64_t count, cudaStream_t);

// mma_block_scale.cu; out[m, n] = sum over k of a[m, k] * b[n, k] with their block scales.
// a: [m, k / 2] and b: [n, k / 2] bytes of two e2m1; scales [m, k / 16] and [n, k / 16] of ue4m3.
cudaError_t launch_mma_nvfp4(
    const uint8_t* a, const uint8_t* b, const uint8_t* a_scale, const uint8_t* b_scale, float* out,
    int m, int n, int k, cudaStream_t);
// a: [m, k] and b: [n, k] bytes of e4m3; scales [m, k / 32] and [n, k / 32] of ue8m0.
cudaError_t launch_mma_mxfp8(
    const uint8_t* a, const uint8_t* b, const uint8_t* a_scale, const uint8_t* b_scale, float* out,
    int m, int n, int k, cudaStream_t);

}  // namespace selftest
