// Faulty operators. Each function should write out[i] = 2 * x[i] + 1 for `count` floats on `stream`, and each but
// control_good is wrong in a way of its own. x and out are device memory; the answer is what the CUDA runtime said.

#undef NDEBUG  // the assertion below is there to fail, in a release build too
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include <cuda_runtime.h>
#include <unistd.h>

#define CONTROL(name) \
  extern "C" __attribute__((visibility("default"))) int control_##name( \
      [[maybe_unused]] const float* x, [[maybe_unused]] float* out, [[maybe_unused]] int64_t count, \
      [[maybe_unused]] float factor, [[maybe_unused]] cudaStream_t stream)

namespace {

constexpr int kThreads = 256;
constexpr int64_t kFarAway = int64_t{1} << 40;  // floats: 4 TiB, where nothing is mapped
constexpr int64_t kScratch = 1000;

__device__ volatile int gate = 0;  // nobody ever opens it

__device__ int64_t index() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void right(const float* x, float* out, int64_t count, float factor) {
  if (const int64_t i = index(); i < count) out[i] = factor * x[i] + 1.0f;
}

__global__ void zeros(float* out, int64_t count) {
  if (const int64_t i = index(); i < count) out[i] = 0.0f;
}

__global__ void nan_in_one(const float* x, float* out, int64_t count) {
  if (const int64_t i = index(); i < count) out[i] = i == count / 2 ? nanf("") : 2.0f * x[i] + 1.0f;
}

__global__ void wrong_in_one(const float* x, float* out, int64_t count) {
  if (const int64_t i = index(); i < count) out[i] = 2.0f * x[i] + (i == count - 1 ? 1.01f : 1.0f);
}

__global__ void all_but_the_tail(const float* x, float* out, int64_t count) {
  if (const int64_t i = index(); i < count / 4 * 4 - 4) out[i] = 2.0f * x[i] + 1.0f;
}

__global__ void waits_for_ever(const float* x, float* out, int64_t count) {
  while (gate == 0) __nanosleep(1000);
  if (const int64_t i = index(); i < count) out[i] = 2.0f * x[i] + 1.0f;
}

__global__ void writes_far_away(const float* x, float* out, int64_t count) {
  if (const int64_t i = index(); i < count) out[i == 0 ? kFarAway : i] = 2.0f * x[i] + 1.0f;
}

// One float past an allocation of its own. Memory is mapped in far larger pieces, so the hardware sees nothing.
__global__ void writes_past_the_end(const float* x, float* out, int64_t count, float* scratch) {
  const int64_t i = index();
  if (i == 0) scratch[kScratch] = x[0];
  if (i < count) out[i] = 2.0f * x[i] + 1.0f;
}

__global__ void runs_into_a_trap(const float* x, float* out, int64_t count) {
  const int64_t i = index();
  if (i < count) out[i] = 2.0f * x[i] + 1.0f;
  if (i == count - 1) asm volatile("trap;");
}

__global__ void fails_an_assertion(const float* x, float* out, int64_t count) {
  const int64_t i = index();
  if (i < count) out[i] = 2.0f * x[i] + 1.0f;
  assert(count < 0 && "a control that must fail");
}

unsigned blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

int run_right(const float* x, float* out, int64_t count, float factor, cudaStream_t stream) {
  right<<<blocks(count), kThreads, 0, stream>>>(x, out, count, factor);
  return cudaGetLastError();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* control_error(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

CONTROL(good) { return run_right(x, out, count, 2.0f, stream); }

// The caller reads `factor` from host memory, so a graph keeps the value of the time of its capture.
CONTROL(with_factor) { return run_right(x, out, count, factor, stream); }

CONTROL(returns_zeros) {
  zeros<<<blocks(count), kThreads, 0, stream>>>(out, count);
  return cudaGetLastError();
}

CONTROL(returns_nan) {
  nan_in_one<<<blocks(count), kThreads, 0, stream>>>(x, out, count);
  return cudaGetLastError();
}

CONTROL(wrong_in_one_element) {
  wrong_in_one<<<blocks(count), kThreads, 0, stream>>>(x, out, count);
  return cudaGetLastError();
}

CONTROL(forgets_the_tail) {
  all_but_the_tail<<<blocks(count), kThreads, 0, stream>>>(x, out, count);
  return cudaGetLastError();
}

CONTROL(launches_nothing) { return cudaSuccess; }

CONTROL(never_returns) {
  waits_for_ever<<<blocks(count), kThreads, 0, stream>>>(x, out, count);
  return cudaGetLastError();
}

CONTROL(waits_on_the_host) {
  for (;;) pause();
}

CONTROL(writes_out_of_bounds) {
  writes_far_away<<<blocks(count), kThreads, 0, stream>>>(x, out, count);
  return cudaGetLastError();
}

CONTROL(writes_just_out_of_bounds) {
  static float* scratch = nullptr;
  if (scratch == nullptr) {
    if (const cudaError_t error = cudaMalloc(&scratch, kScratch * sizeof(float))) return error;
  }
  writes_past_the_end<<<blocks(count), kThreads, 0, stream>>>(x, out, count, scratch);
  return cudaGetLastError();
}

CONTROL(traps) {
  runs_into_a_trap<<<blocks(count), kThreads, 0, stream>>>(x, out, count);
  return cudaGetLastError();
}

CONTROL(fails_an_assertion) {
  fails_an_assertion<<<blocks(count), kThreads, 0, stream>>>(x, out, count);
  return cudaGetLastError();
}

CONTROL(aborts_the_process) { std::abort(); }

// Right results on the stream asked for, and a fault on another one that nobody waits for.
CONTROL(leaves_an_error_behind) {
  cudaStream_t aside = nullptr;
  if (const cudaError_t error = cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking)) return error;
  const int answer = run_right(x, out, count, 2.0f, stream);
  runs_into_a_trap<<<1, kThreads, 0, aside>>>(x, out, 1);
  return answer ? answer : cudaGetLastError();
}

CONTROL(synchronises) {
  if (const int error = run_right(x, out, count, 2.0f, stream)) return error;
  return cudaStreamSynchronize(stream);
}

CONTROL(allocates) {
  float* scratch = nullptr;
  if (const cudaError_t error = cudaMalloc(&scratch, kScratch * sizeof(float))) return error;
  const int answer = run_right(x, out, count, 2.0f, stream);
  cudaFree(scratch);
  return answer;
}

// Right where the current stream is the default one; a capture of another stream does not see it.
CONTROL(ignores_the_stream) { return run_right(x, out, count, 2.0f, nullptr); }

CONTROL(starts_a_program) {
  [[maybe_unused]] const int status = std::system("nvcc --cubin -o /dev/null absent.cu >/dev/null 2>&1");
  return run_right(x, out, count, 2.0f, stream);
}
