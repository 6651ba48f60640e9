// The launches of the delta rule's kernels: runtime types and sizes, one instance of each.
#include "kernels/attn/linear/delta/chain.h"
#include "kernels/attn/linear/delta/differentiate.h"
#include "kernels/attn/linear/delta/fold.h"
#include "kernels/attn/linear/delta/prepare.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::delta {
namespace {

__global__ void __launch_bounds__(kThreads) prepareKernel(const __grid_constant__ Task task) {
  Prepare::run(task);
}
__global__ void __launch_bounds__(kThreads) advanceKernel(const __grid_constant__ Task task) {
  Advance::run(task);
}
__global__ void __launch_bounds__(kThreads) retreatKernel(const __grid_constant__ Task task) {
  Retreat::run(task);
}
__global__ void __launch_bounds__(kThreads) differentiateKernel(const __grid_constant__ Task task) {
  Differentiate::run(task);
}
__global__ void __launch_bounds__(kFoldThreads) foldKernel(const __grid_constant__ FoldTask task) {
  FoldStates::run(task);
}
__global__ void __launch_bounds__(kThreads) squareKernel(float* to, const float* from, int64_t numbers, int size) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < numbers; i += int64_t{gridDim.x} * kThreads) {
    to[i] = squareElement(from, i, size);
  }
}

int launchSquares(float* to, const float* from, int64_t count, int size, void* stream) {
  const int64_t numbers = count * size * size;
  if (numbers == 0) return cudaSuccess;
  return launchKernel(squareKernel, gridOf((numbers + kThreads - 1) / kThreads, 1024), kThreads, 0, stream, false, to,
                      from, numbers, size);
}

}  // namespace

int launch(Step step, const Task& task, void* stream) {
  const int64_t blocks = blocksOf(step, task);
  if (blocks == 0) return cudaSuccess;
  const auto start = [&](void (*kernel)(Task)) {
    const int bytes = sharedNumbers(step, task) * static_cast<int>(sizeof(float));
    return launchKernel(kernel, gridOf(blocks, 0), kThreads, bytes, stream, false, task);
  };
  switch (step) {
    case Step::Prepare:
      return start(prepareKernel);
    case Step::Advance:
      return start(advanceKernel);
    case Step::Retreat:
      return start(retreatKernel);
    case Step::Differentiate:
      return start(differentiateKernel);
  }
  return cudaErrorInvalidValue;
}

int launchFold(const FoldTask& task, void* stream) {
  const int64_t ctas = ctasOfFold(task);
  if (ctas == 0) return cudaSuccess;
  return launchKernel(foldKernel, gridOf(ctas, 0), kFoldThreads, kFoldBytes, stream, true, task);
}
int launchTranspose(float* to, const float* from, int64_t count, int size, void* stream) {
  return launchSquares(to, from, count, size, stream);
}
int launchIdentity(float* to, int64_t count, int size, void* stream) {
  return launchSquares(to, nullptr, count, size, stream);
}

}  // namespace seqpar::attn::delta
