// A cluster of blocks that write into each other's shared memory. One cluster takes one row; each block sums its
// quarter, puts the sum into the shared memory of all four, and after the cluster's barrier divides its quarter by the
// row's total.

#include <cooperative_groups.h>

#include "kernels.h"
#include "reduce.cuh"

namespace selftest {
namespace {

namespace cg = cooperative_groups;
constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) cluster_normalize_kernel(const float* x, float* out, int columns) {
  __shared__ float sums[kClusterBlocks];
  cg::cluster_group cluster = cg::this_cluster();
  const unsigned rank = cluster.block_rank();
  const int64_t row = static_cast<int64_t>(blockIdx.x) / kClusterBlocks * columns;
  const int share = (columns + kClusterBlocks - 1) / kClusterBlocks;
  const int first = static_cast<int>(rank) * share, last = min(first + share, columns);

  float sum = 0.0f;
  for (int i = first + static_cast<int>(threadIdx.x); i < last; i += kThreads) sum += fabsf(x[row + i]);
  sum = block_sum(sum);
  cluster.sync();  // every block of the cluster has started: its shared memory may be written
  if (threadIdx.x < kClusterBlocks) *cluster.map_shared_rank(&sums[rank], threadIdx.x) = sum;
  cluster.sync();  // all sums have arrived, and nothing of another block is touched after this

  float total = 0.0f;
  for (float each : sums) total += each;
  for (int i = first + static_cast<int>(threadIdx.x); i < last; i += kThreads) out[row + i] = x[row + i] / total;
}

}  // namespace

cudaError_t launch_cluster_normalize(const float* x, float* out, int64_t rows, int columns, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kClusterBlocks;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * kClusterBlocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* arguments[] = {&x, &out, &columns};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(cluster_normalize_kernel), arguments);
}

}  // namespace selftest
