// A barrier over the whole grid. Each block sums its share, all blocks meet, and then each divides its share by the
// total of every block's sum: without a true barrier some block reads a sum that is not there yet.

#include <algorithm>
#include <cooperative_groups.h>

#include "kernels.h"
#include "reduce.cuh"

namespace selftest {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
grid_normalize_kernel(const float* x, float* out, float* partials, int64_t count) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  float sum = 0.0f;
  for (int64_t i = first; i < count; i += stride) sum += fabsf(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;

  cooperative_groups::this_grid().sync();

  float total = 0.0f;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads) total += partials[i];
  total = block_sum(total);
  for (int64_t i = first; i < count; i += stride) out[i] = x[i] / total;
}

}  // namespace

cudaError_t launch_grid_normalize(
    const float* x, float* out, float* partials, int64_t count, int device, cudaStream_t stream) {
  int processors = 0, per_processor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, grid_normalize_kernel, kThreads, 0);
  if (error != cudaSuccess) return error;
  // A cooperative grid must be resident as a whole: no more blocks than run at once.
  const int64_t wanted = (count + kThreads - 1) / kThreads;
  const int64_t most = std::min<int64_t>(static_cast<int64_t>(processors) * per_processor, kGridSyncMaxBlocks);
  const dim3 grid(static_cast<unsigned>(std::min(wanted, most)));
  void* arguments[] = {&x, &out, &partials, &count};
  return cudaLaunchCooperativeKernel(
      reinterpret_cast<const void*>(grid_normalize_kernel), grid, dim3(kThreads), arguments, 0, stream);
}

}  // namespace selftest
