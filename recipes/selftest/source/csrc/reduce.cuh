// Sums over a block, in a fixed order: the same input gives the same bits.
#pragma once

namespace selftest {

__device__ inline float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The sum of `value` over the block, for every thread. blockDim.x is a multiple of 32.
__device__ inline float block_sum(float value) {
  __shared__ float warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  value = warp_sum(value);
  __syncthreads();  // an earlier call may still be reading
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  return warp_sum(lane < static_cast<int>(blockDim.x) / 32 ? warps[lane] : 0.0f);
}

}  // namespace selftest
