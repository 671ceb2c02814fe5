// float to e2m1 and e2m1 to half by the GPU's own instructions, two values at a time.
// Source: PTX ISA, "cvt" (e2m1x2: architecture- or family-specific targets from sm_100a on; plain sm_120 has it not);
// converting to e2m1x2, the first operand goes to the upper half of the byte.

#include "kernels.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_SPECIFIC__) && !defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#error "fp4_convert.cu is only for targets such as sm_120a or sm_120f: CMakeLists.txt must leave it out of this one"
#endif

namespace selftest {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) fp4_quantize_kernel(const float2* x, uint8_t* out, int64_t pairs) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pairs) return;
  uint16_t packed;
  asm("{ .reg .b8 code;\n"
      "  cvt.rn.satfinite.e2m1x2.f32 code, %1, %2;\n"
      "  mov.b16 %0, {code, 0}; }"
      : "=h"(packed)
      : "f"(x[i].y), "f"(x[i].x));
  out[i] = static_cast<uint8_t>(packed);
}

__global__ void __launch_bounds__(kThreads) fp4_dequantize_kernel(const uint8_t* x, uint32_t* out, int64_t pairs) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pairs) return;
  uint32_t halves;
  asm("{ .reg .b8 code, rest;\n"
      "  mov.b16 {code, rest}, %1;\n"
      "  cvt.rn.f16x2.e2m1x2 %0, code; }"
      : "=r"(halves)
      : "h"(static_cast<uint16_t>(x[i])));
  out[i] = halves;
}

unsigned blocks(int64_t pairs) { return static_cast<unsigned>((pairs + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t launch_fp4_quantize(const float* x, uint8_t* out, int64_t count, cudaStream_t stream) {
  fp4_quantize_kernel<<<blocks(count / 2), kThreads, 0, stream>>>(
      reinterpret_cast<const float2*>(x), out, count / 2);
  return cudaGetLastError();
}

cudaError_t launch_fp4_dequantize(const uint8_t* x, void* out_f16, int64_t count, cudaStream_t stream) {
  fp4_dequantize_kernel<<<blocks(count / 2), kThreads, 0, stream>>>(
      x, static_cast<uint32_t*>(out_f16), count / 2);
  return cudaGetLastError();
}

}  // namespace selftest
