#include "cuda.h"
#include "gpu_kernels.h"

namespace seqpar::perf {
namespace {

constexpr uint64_t kPatienceNs = 20ull * 1000 * 1000 * 1000;
constexpr int kStoreThreads = 1024;

__device__ uint64_t now() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

/// True when `word` has reached `epoch`, which may wrap around; false after a timeout.
__device__ bool waitFor(const volatile uint32_t* word, uint32_t epoch) {
  const uint64_t start = now();
  uint32_t polls = 0;  // reading the clock takes longer than a poll
  while (static_cast<int32_t>(*word - epoch) < 0) {
    if (++polls % 4096 == 0 && now() - start > kPatienceNs) return false;
  }
  return true;
}

__global__ void barrierKernel(const __grid_constant__ Flags flags, uint64_t holdNs) {
  const uint64_t start = now();
  while (now() - start < holdNs) {
  }
  const int peer = static_cast<int>(threadIdx.x);
  const uint32_t epoch = *flags.epoch + 1;
  __syncthreads();
  if (peer == 0) *flags.epoch = epoch;
  if (peer >= flags.size) return;
  *static_cast<volatile uint32_t*>(flags.words[peer] + flags.self) = epoch;
  if (!waitFor(flags.words[flags.self] + peer, epoch)) *static_cast<volatile uint32_t*>(flags.failed) = 1 + peer;
}

__global__ void pingPongKernel(const __grid_constant__ Flags flags, uint32_t from, uint32_t rounds) {
  const int peer = 1 - flags.self;
  const volatile uint32_t* const mine = flags.words[flags.self] + kMostFlags;
  volatile uint32_t* const remote = flags.words[peer] + kMostFlags;
  for (uint32_t round = from + 1; round <= from + rounds; ++round) {
    if (flags.self == 0) *remote = round;
    if (!waitFor(mine, round)) {
      *static_cast<volatile uint32_t*>(flags.failed) = 1 + peer;
      return;
    }
    if (flags.self == 1) *remote = round;
  }
}

__global__ void __launch_bounds__(kStoreThreads) storeKernel(uint4* to, size_t count) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    to[i] = make_uint4(1, 2, 3, 4);
  }
}

}  // namespace

void launchBarrier(const Flags& flags, uint64_t holdNs, cudaStream_t stream) {
  barrierKernel<<<1, kMostFlags, 0, stream>>>(flags, holdNs);
  checkCuda(cudaGetLastError(), "barrierKernel");
}

void launchPingPong(const Flags& flags, uint32_t from, uint32_t rounds, cudaStream_t stream) {
  pingPongKernel<<<1, 1, 0, stream>>>(flags, from, rounds);
  checkCuda(cudaGetLastError(), "pingPongKernel");
}

void launchStores(void* to, size_t bytes, cudaStream_t stream) {
  int device = 0, smCount = 0;
  checkCuda(cudaGetDevice(&device), "cudaGetDevice");
  checkCuda(cudaDeviceGetAttribute(&smCount, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  storeKernel<<<smCount, kStoreThreads, 0, stream>>>(static_cast<uint4*>(to), bytes / sizeof(uint4));
  checkCuda(cudaGetLastError(), "storeKernel");
}

}  // namespace seqpar::perf
