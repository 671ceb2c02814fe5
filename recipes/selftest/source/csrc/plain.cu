// Kernels that every target has: they show that the machine code is for this GPU at all, before any feature is blamed.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels.h"
#include "reduce.cuh"

namespace selftest {
namespace {

constexpr int kThreads = 256;

__device__ float widen(float value) { return value; }
__device__ float widen(__half value) { return __half2float(value); }
__device__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T> __device__ T narrow(float value);
template <> __device__ float narrow<float>(float value) { return value; }
template <> __device__ __half narrow<__half>(float value) { return __float2half_rn(value); }
template <> __device__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

template <typename T>
__global__ void __launch_bounds__(kThreads)
rmsnorm_kernel(const T* x, const T* weight, T* out, int columns, float eps) {
  x += static_cast<int64_t>(blockIdx.x) * columns;
  out += static_cast<int64_t>(blockIdx.x) * columns;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < columns; i += kThreads) squares += widen(x[i]) * widen(x[i]);
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(columns) + eps);
  for (int i = threadIdx.x; i < columns; i += kThreads) out[i] = narrow<T>(widen(x[i]) * scale * widen(weight[i]));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) silu_and_mul_kernel(const T* x, T* out, int columns) {
  const T* gate = x + static_cast<int64_t>(blockIdx.x) * 2 * columns;
  const T* value = gate + columns;
  out += static_cast<int64_t>(blockIdx.x) * columns;
  for (int i = threadIdx.x; i < columns; i += kThreads) {
    const float g = widen(gate[i]);
    out[i] = narrow<T>(g / (1.0f + expf(-g)) * widen(value[i]));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) row_sum_kernel(const T* x, float* out, int columns) {
  x += static_cast<int64_t>(blockIdx.x) * columns;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += kThreads) sum += widen(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Calls `launch` with a null pointer of the element type, which is how a generic lambda learns it in C++17.
template <typename Launch>
cudaError_t with_type(Float type, Launch launch) {
  switch (type) {
    case Float::f32: launch(static_cast<const float*>(nullptr)); break;
    case Float::f16: launch(static_cast<const __half*>(nullptr)); break;
    case Float::bf16: launch(static_cast<const __nv_bfloat16*>(nullptr)); break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_rmsnorm(
    Float type, const void* x, const void* weight, void* out, int64_t rows, int columns, float eps,
    cudaStream_t stream) {
  return with_type(type, [&](auto* element) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(element)>>;
    rmsnorm_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(out), columns, eps);
  });
}

cudaError_t launch_silu_and_mul(
    Float type, const void* x, void* out, int64_t rows, int columns, cudaStream_t stream) {
  return with_type(type, [&](auto* element) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(element)>>;
    silu_and_mul_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<T*>(out), columns);
  });
}

cudaError_t launch_row_sum(Float type, const void* x, float* out, int64_t rows, int columns, cudaStream_t stream) {
  return with_type(type, [&](auto* element) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(element)>>;
    row_sum_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(static_cast<const T*>(x), out, columns);
  });
}

}  // namespace selftest
