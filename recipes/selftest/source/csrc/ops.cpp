// The operators torch.ops.sm120_selftest.*: checks of what was given, then the launch on torch's current stream.
//
// Every operator exists in every build. One whose feature has no machine code for the GPU at hand raises
// NotImplementedError ("not on this target ...") before anything is launched. A result without an element is returned
// without a launch: a grid of no block is an invalid configuration.

#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "build_config.h"
#include "kernels.h"
#include "numa_host.h"
#include "target.h"

namespace selftest {
namespace {

using at::Tensor;

void check_launch(const char* op, cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess, "sm120_selftest::", op, ": the launch failed: ", cudaGetErrorString(error));
}

void require_target(const char* op, const char* feature, const Tensor& x) {
  TORCH_CHECK(x.is_cuda(), "sm120_selftest::", op, ": takes CUDA tensors, got one on ", x.device());
  int major = 0, minor = 0;
  check_launch(op, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.get_device()));
  check_launch(op, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, x.get_device()));
  const std::string why = why_not(feature, {major, minor});
  TORCH_CHECK_NOT_IMPLEMENTED(why.empty(), "sm120_selftest::", op, ": ", why);
}

// What every tensor argument must be: on `like`'s GPU, contiguous, of `type` and rank, and aligned for wide loads.
void require(const char* op, const char* name, const Tensor& t, const Tensor& like, at::ScalarType type, int64_t rank) {
  TORCH_CHECK(
      t.device() == like.device(), "sm120_selftest::", op, ": ", name, " must be on ", like.device(), ", is on ",
      t.device());
  TORCH_CHECK(
      t.scalar_type() == type, "sm120_selftest::", op, ": ", name, " must be ", type, ", is ", t.scalar_type());
  TORCH_CHECK(t.dim() == rank, "sm120_selftest::", op, ": ", name, " must have ", rank, " dimensions, has ", t.dim());
  TORCH_CHECK(t.is_contiguous(), "sm120_selftest::", op, ": ", name, " must be contiguous");
  TORCH_CHECK(
      reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0, "sm120_selftest::", op, ": ", name,
      " must begin at a multiple of 16 bytes");
}

Float float_type(const char* op, const Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat: return Float::f32;
    case at::kHalf: return Float::f16;
    case at::kBFloat16: return Float::bf16;
    default: break;
  }
  TORCH_CHECK(false, "sm120_selftest::", op, ": x must be float32, float16 or bfloat16, is ", x.scalar_type());
}

int columns_of(const char* op, const Tensor& x) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  TORCH_CHECK(x.size(0) <= most / 4 && x.size(1) <= most / 4, "sm120_selftest::", op, ": x is too large: ", x.sizes());
  return static_cast<int>(x.size(1));
}

cudaStream_t stream_of(const Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.get_device()).stream(); }

Tensor rmsnorm(const Tensor& x, const Tensor& weight, double eps) {
  require_target("rmsnorm", "plain", x);
  const Float type = float_type("rmsnorm", x);
  require("rmsnorm", "x", x, x, x.scalar_type(), 2);
  require("rmsnorm", "weight", weight, x, x.scalar_type(), 1);
  TORCH_CHECK(
      weight.size(0) == x.size(1), "sm120_selftest::rmsnorm: weight must have x's ", x.size(1), " columns, has ",
      weight.size(0));
  const int columns = columns_of("rmsnorm", x);
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out = at::empty(x.sizes(), x.options());
  if (out.numel() == 0) return out;
  check_launch(
      "rmsnorm", launch_rmsnorm(
                     type, x.const_data_ptr(), weight.const_data_ptr(), out.mutable_data_ptr(), x.size(0), columns,
                     static_cast<float>(eps), stream_of(x)));
  return out;
}

Tensor silu_and_mul(const Tensor& x) {
  require_target("silu_and_mul", "plain", x);
  const Float type = float_type("silu_and_mul", x);
  require("silu_and_mul", "x", x, x, x.scalar_type(), 2);
  TORCH_CHECK(x.size(1) % 2 == 0, "sm120_selftest::silu_and_mul: x must have an even number of columns, has ", x.size(1));
  const int columns = columns_of("silu_and_mul", x) / 2;
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out = at::empty({x.size(0), columns}, x.options());
  if (out.numel() == 0) return out;
  check_launch(
      "silu_and_mul",
      launch_silu_and_mul(type, x.const_data_ptr(), out.mutable_data_ptr(), x.size(0), columns, stream_of(x)));
  return out;
}

Tensor row_sum(const Tensor& x) {
  require_target("row_sum", "plain", x);
  const Float type = float_type("row_sum", x);
  require("row_sum", "x", x, x, x.scalar_type(), 2);
  const int columns = columns_of("row_sum", x);
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  if (out.numel() == 0) return out;
  check_launch(
      "row_sum",
      launch_row_sum(type, x.const_data_ptr(), out.mutable_data_ptr<float>(), x.size(0), columns, stream_of(x)));
  return out;
}

Tensor grid_normalize(const Tensor& x) {
  require_target("grid_normalize", "grid_sync", x);
  require("grid_normalize", "x", x, x, at::kFloat, 1);
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out = at::empty(x.sizes(), x.options());
  if (out.numel() == 0) return out;
  Tensor partials = at::empty({kGridSyncMaxBlocks}, x.options());
  check_launch(
      "grid_normalize", launch_grid_normalize(
                            x.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
                            partials.mutable_data_ptr<float>(), x.numel(), x.get_device(), stream_of(x)));
  return out;
}

Tensor cluster_normalize(const Tensor& x) {
  require_target("cluster_normalize", "cluster", x);
  require("cluster_normalize", "x", x, x, at::kFloat, 2);
#if SELFTEST_HAS_CLUSTER
  const int columns = columns_of("cluster_normalize", x);
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out = at::empty(x.sizes(), x.options());
  if (out.numel() == 0) return out;
  check_launch(
      "cluster_normalize",
      launch_cluster_normalize(
          x.const_data_ptr<float>(), out.mutable_data_ptr<float>(), x.size(0), columns, stream_of(x)));
  return out;
#else
  TORCH_INTERNAL_ASSERT(false, "require_target lets nothing through here");
#endif
}

Tensor tma_scale(const Tensor& x, double factor) {
  require_target("tma_scale", "tma_bulk", x);
  require("tma_scale", "x", x, x, at::kFloat, 1);
  TORCH_CHECK(
      x.numel() % 4 == 0, "sm120_selftest::tma_scale: x must have a multiple of 4 elements (16 bytes), has ", x.numel());
#if SELFTEST_HAS_TMA_BULK
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out = at::empty(x.sizes(), x.options());
  if (out.numel() == 0) return out;
  check_launch(
      "tma_scale",
      launch_tma_scale(
          x.const_data_ptr<float>(), out.mutable_data_ptr<float>(), x.numel(), static_cast<float>(factor),
          stream_of(x)));
  return out;
#else
  (void)factor;
  TORCH_INTERNAL_ASSERT(false, "require_target lets nothing through here");
#endif
}

void require_pairs(const char* op, const Tensor& x) {
  require(op, "x", x, x, at::kFloat, 2);
  TORCH_CHECK(x.size(1) % 2 == 0, "sm120_selftest::", op, ": x must have an even number of columns, has ", x.size(1));
}

Tensor fp8_quantize(const Tensor& x) {
  require_target("fp8_quantize", "fp8_convert", x);
  require_pairs("fp8_quantize", x);
#if SELFTEST_HAS_FP8_CONVERT
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out = at::empty(x.sizes(), x.options().dtype(at::kByte));
  if (out.numel() == 0) return out;
  check_launch(
      "fp8_quantize",
      launch_fp8_quantize(x.const_data_ptr<float>(), out.mutable_data_ptr<uint8_t>(), x.numel(), stream_of(x)));
  return out;
#else
  TORCH_INTERNAL_ASSERT(false, "require_target lets nothing through here");
#endif
}

Tensor fp4_quantize(const Tensor& x) {
  require_target("fp4_quantize", "fp4_convert", x);
  require_pairs("fp4_quantize", x);
#if SELFTEST_HAS_FP4_CONVERT
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out = at::empty({x.size(0), x.size(1) / 2}, x.options().dtype(at::kByte));
  if (out.numel() == 0) return out;
  check_launch(
      "fp4_quantize",
      launch_fp4_quantize(x.const_data_ptr<float>(), out.mutable_data_ptr<uint8_t>(), x.numel(), stream_of(x)));
  return out;
#else
  TORCH_INTERNAL_ASSERT(false, "require_target lets nothing through here");
#endif
}

Tensor fp4_dequantize(const Tensor& x) {
  require_target("fp4_dequantize", "fp4_convert", x);
  require("fp4_dequantize", "x", x, x, at::kByte, 2);
#if SELFTEST_HAS_FP4_CONVERT
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out = at::empty({x.size(0), x.size(1) * 2}, x.options().dtype(at::kHalf));
  if (out.numel() == 0) return out;
  check_launch(
      "fp4_dequantize",
      launch_fp4_dequantize(x.const_data_ptr<uint8_t>(), out.mutable_data_ptr(), out.numel(), stream_of(x)));
  return out;
#else
  TORCH_INTERNAL_ASSERT(false, "require_target lets nothing through here");
#endif
}

// The four operands of a block-scaled product: bytes of [m, k / per_byte], [n, k / per_byte] and, with one scale for
// `per_scale` elements of k, [m, k / per_scale] and [n, k / per_scale]; k a multiple of `step`.
Tensor block_scaled(
    const char* op, const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale, int per_byte,
    int per_scale, int step, decltype(&launch_mma_nvfp4) launch) {
  require(op, "a", a, a, at::kByte, 2);
  require(op, "b", b, a, at::kByte, 2);
  require(op, "a_scale", a_scale, a, at::kByte, 2);
  require(op, "b_scale", b_scale, a, at::kByte, 2);
  const int64_t m = a.size(0), n = b.size(0), k = a.size(1) * per_byte;
  TORCH_CHECK(b.size(1) == a.size(1), "sm120_selftest::", op, ": a has k = ", k, ", b ", b.size(1) * per_byte);
  TORCH_CHECK(k % step == 0, "sm120_selftest::", op, ": k must be a multiple of ", step, ", is ", k);
  TORCH_CHECK(
      m < (1 << 20) && n < (1 << 19) && k < (1 << 20), "sm120_selftest::", op, ": too large: ", m, " x ", n, " x ", k);
  TORCH_CHECK(
      a_scale.size(0) == m && a_scale.size(1) == k / per_scale, "sm120_selftest::", op, ": a_scale must be [", m, ", ",
      k / per_scale, "], is ", a_scale.sizes());
  TORCH_CHECK(
      b_scale.size(0) == n && b_scale.size(1) == k / per_scale, "sm120_selftest::", op, ": b_scale must be [", n, ", ",
      k / per_scale, "], is ", b_scale.sizes());
  const c10::cuda::CUDAGuard guard(a.device());
  Tensor out = at::empty({m, n}, a.options().dtype(at::kFloat));
  if (out.numel() == 0) return out;
  check_launch(
      op, launch(
              a.const_data_ptr<uint8_t>(), b.const_data_ptr<uint8_t>(), a_scale.const_data_ptr<uint8_t>(),
              b_scale.const_data_ptr<uint8_t>(), out.mutable_data_ptr<float>(), static_cast<int>(m),
              static_cast<int>(n), static_cast<int>(k), stream_of(a)));
  return out;
}

#if SELFTEST_HAS_MMA_BLOCK_SCALE
constexpr decltype(&launch_mma_nvfp4) kLaunchNvfp4 = &launch_mma_nvfp4, kLaunchMxfp8 = &launch_mma_mxfp8;
#else
constexpr decltype(&launch_mma_nvfp4) kLaunchNvfp4 = nullptr, kLaunchMxfp8 = nullptr;  // require_target stops before
#endif

Tensor mma_nvfp4(const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale) {
  require_target("mma_nvfp4", "mma_block_scale", a);
  return block_scaled("mma_nvfp4", a, b, a_scale, b_scale, 2, 16, 64, kLaunchNvfp4);
}

Tensor mma_mxfp8(const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale) {
  require_target("mma_mxfp8", "mma_block_scale", a);
  return block_scaled("mma_mxfp8", a, b, a_scale, b_scale, 1, 32, 32, kLaunchMxfp8);
}

std::string build_info() { return kBuildInfo; }

int64_t count_numa_nodes() { return numa_node_count(); }

int64_t gpu_numa_node(int64_t device) { return node_of_gpu(static_cast<int>(device)); }

int64_t memory_numa_node(const Tensor& x) {
  TORCH_CHECK(x.is_cpu() && x.numel() > 0, "sm120_selftest::memory_numa_node: takes host memory that is not empty");
  return node_of_memory(x.data_ptr());
}

Tensor pinned_near_gpu(int64_t bytes, int64_t device) {
  TORCH_CHECK(bytes > 0, "sm120_selftest::pinned_near_gpu: bytes must be above 0, is ", bytes);
  std::string why;
  void* address = pinned_on_node(static_cast<size_t>(bytes), node_of_gpu(static_cast<int>(device)), why);
  TORCH_CHECK(address != nullptr, "sm120_selftest::pinned_near_gpu: no page-locked memory of ", bytes, " bytes: ", why);
  return at::from_blob(
      address, {bytes}, [bytes](void* memory) { free_pinned(memory, static_cast<size_t>(bytes)); },
      at::TensorOptions().dtype(at::kByte).device(at::kCPU));
}

}  // namespace

TORCH_LIBRARY(sm120_selftest, m) {
  m.def("rmsnorm(Tensor x, Tensor weight, float eps) -> Tensor", &rmsnorm);
  m.def("silu_and_mul(Tensor x) -> Tensor", &silu_and_mul);
  m.def("row_sum(Tensor x) -> Tensor", &row_sum);
  m.def("grid_normalize(Tensor x) -> Tensor", &grid_normalize);
  m.def("cluster_normalize(Tensor x) -> Tensor", &cluster_normalize);
  m.def("tma_scale(Tensor x, float factor) -> Tensor", &tma_scale);
  m.def("fp8_quantize(Tensor x) -> Tensor", &fp8_quantize);
  m.def("fp4_quantize(Tensor x) -> Tensor", &fp4_quantize);
  m.def("fp4_dequantize(Tensor x) -> Tensor", &fp4_dequantize);
  m.def("mma_nvfp4(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor", &mma_nvfp4);
  m.def("mma_mxfp8(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor", &mma_mxfp8);
  m.def("build_info() -> str", &build_info);
  m.def("numa_node_count() -> int", &count_numa_nodes);
  m.def("gpu_numa_node(int device) -> int", &gpu_numa_node);
  m.def("memory_numa_node(Tensor x) -> int", &memory_numa_node);
  m.def("pinned_near_gpu(int bytes, int device) -> Tensor", &pinned_near_gpu);
}

}  // namespace selftest
