#include "gpu/support/fill.h"

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

unsigned ctasFor(std::size_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

void launchFill(float* memory, std::size_t count, float value, cudaStream_t stream) {
  fill<<<ctasFor(count), kThreads, 0, stream>>>(memory, count, value);
}

void launchCompare(const float* memory, std::size_t count, float value, unsigned* wrong, cudaStream_t stream) {
  compare<<<ctasFor(count), kThreads, 0, stream>>>(memory, count, value, wrong);
}

}  // namespace seqpar::test
