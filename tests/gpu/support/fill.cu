#include "gpu/support/fill.h"

#include <algorithm>

#include "kernels/arch/system_memory.h"
#include "kernels/launch.h"

namespace seqpar::test {
namespace {

constexpr int kThreads = 256;

__global__ void fill(float* memory, std::size_t count, float value) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) memory[i] = value;
}

__global__ void compare(const float* memory, std::size_t count, float value, unsigned* wrong) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count && memory[i] != value) atomicAdd(wrong, 1U);
}

__global__ void copy(std::byte* into, const std::byte* from, std::size_t bytes, std::uint64_t ns) {
  const std::uint64_t start = ptx::globaltimer();
  while (ptx::globaltimer() - start < ns) {
  }
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < bytes; i += step) {
    into[i] = from[i];
  }
}

constexpr int kLocalBytes = 5 * 1024;

__global__ void useLocalMemory(unsigned char* into, int bytes) {
  unsigned char local[kLocalBytes];
  for (int i = 0; i < bytes; ++i) local[i * 7 % kLocalBytes] = static_cast<unsigned char>(i);
  if (bytes > 0) into[threadIdx.x] = local[bytes % kLocalBytes];
}

unsigned ctasFor(std::size_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t launchCopy(void* into, const void* from, std::size_t bytes, cudaStream_t stream) {
  return launchLateCopy(into, from, bytes, 0, stream);
}

cudaError_t launchLateCopy(void* into, const void* from, std::size_t bytes, std::uint64_t ns, cudaStream_t stream) {
  constexpr unsigned kMostCtas = 16;
  if (bytes == 0) return cudaSuccess;
  return launchKernel(copy, {std::min(ctasFor(bytes), kMostCtas), kThreads, 0, stream}, static_cast<std::byte*>(into),
                      static_cast<const std::byte*>(from), bytes, ns);
}

cudaError_t growLocalMemory() {
  const cudaError_t launched =
      launchKernel(useLocalMemory, {1, 32, 0, nullptr}, static_cast<unsigned char*>(nullptr), 0);
  return launched == cudaSuccess ? cudaDeviceSynchronize() : launched;
}

void launchFill(float* memory, std::size_t count, float value, cudaStream_t stream) {
  fill<<<ctasFor(count), kThreads, 0, stream>>>(memory, count, value);
}

void launchCompare(const float* memory, std::size_t count, float value, unsigned* wrong, cudaStream_t stream) {
  compare<<<ctasFor(count), kThreads, 0, stream>>>(memory, count, value, wrong);
}

}  // namespace seqpar::test
