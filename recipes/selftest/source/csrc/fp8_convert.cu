// float to e4m3 by the GPU's own instruction: round to nearest even, beyond the largest finite value saturate.
// Source: PTX ISA, "cvt" (e4m3x2: sm_89 or later); the first operand goes to the upper half.

#include "kernels.h"

namespace selftest {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) fp8_quantize_kernel(const float2* x, uint16_t* out, int64_t pairs) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pairs) return;
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(x[i].y), "f"(x[i].x));
  out[i] = packed;
}

}  // namespace

cudaError_t launch_fp8_quantize(const float* x, uint8_t* out, int64_t count, cudaStream_t stream) {
  const int64_t pairs = count / 2;
  fp8_quantize_kernel<<<static_cast<unsigned>((pairs + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      reinterpret_cast<const float2*>(x), reinterpret_cast<uint16_t*>(out), pairs);
  return cudaGetLastError();
}

}  // namespace selftest
