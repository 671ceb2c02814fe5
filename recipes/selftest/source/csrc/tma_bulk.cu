// The bulk copy engine in both directions (cp.async.bulk), with an mbarrier that counts the bytes that arrive. Two tiles
// are in flight, so that each barrier goes through both of its phases.
// Source: PTX ISA, "cp.async.bulk" (sm_90 or later; sizes and addresses in multiples of 16 bytes), "mbarrier".

#include <algorithm>

#include "kernels.h"

namespace selftest {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 1024;  // floats
constexpr int kStages = 2;
constexpr int kMaxBlocks = 64;

__device__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ void barrier_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

// Announces `bytes` and starts their copy from global memory; the barrier's phase ends when they have arrived.
__device__ void load_tile(float* tile, const float* source, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(tile)),
      "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

__device__ void wait_for_phase(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{ .reg .pred p;\n"
        "  mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

__global__ void __launch_bounds__(kThreads) tma_scale_kernel(const float* x, float* out, int64_t count, float factor) {
  __shared__ alignas(128) float tiles[kStages][kTile];
  __shared__ alignas(8) uint64_t arrived[kStages];
  const int64_t tile_count = (count + kTile - 1) / kTile;
  const auto length = [&](int64_t tile) { return static_cast<int>(min(static_cast<int64_t>(kTile), count - tile * kTile)); };
  const auto load = [&](int64_t tile, int stage) {
    load_tile(tiles[stage], x + tile * kTile, static_cast<uint32_t>(length(tile) * sizeof(float)), &arrived[stage]);
  };

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) barrier_init(&arrived[stage]);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      const int64_t tile = blockIdx.x + static_cast<int64_t>(stage) * gridDim.x;
      if (tile < tile_count) load(tile, stage);
    }
  }

  uint32_t turn = 0;
  for (int64_t tile = blockIdx.x; tile < tile_count; tile += gridDim.x, ++turn) {
    const int stage = static_cast<int>(turn % kStages);
    wait_for_phase(&arrived[stage], turn / kStages % 2);
    for (int i = threadIdx.x; i < length(tile); i += kThreads) tiles[stage][i] *= factor;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what was written, for the copy engine to see
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile(
          "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
              __cvta_generic_to_global(out + tile * kTile)),
          "r"(shared_address(tiles[stage])), "r"(static_cast<uint32_t>(length(tile) * sizeof(float)))
          : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      const int64_t next = tile + static_cast<int64_t>(kStages) * gridDim.x;
      if (next < tile_count) {
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the tile has been read: it may be filled again
        load(next, stage);
      }
    }
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace

cudaError_t launch_tma_scale(const float* x, float* out, int64_t count, float factor, cudaStream_t stream) {
  const int64_t tile_count = (count + kTile - 1) / kTile;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tile_count, kMaxBlocks));
  tma_scale_kernel<<<blocks, kThreads, 0, stream>>>(x, out, count, factor);
  return cudaGetLastError();
}

}  // namespace selftest
