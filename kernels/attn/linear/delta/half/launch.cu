// The launches of the delta rule's kernels for 16-bit tensors.
#include "kernels/attn/linear/delta/half/chain.h"
#include "kernels/attn/linear/delta/half/differentiate_channels.h"
#include "kernels/attn/linear/delta/half/prepare.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::delta::half {
namespace {

template <class T, bool kChannel>
__global__ void __launch_bounds__(kThreads, kChannel ? 1 : 2) prepareKernel(const __grid_constant__ Task task) {
  Prepare<T, kChannel>::run(task);
}
template <class T>
__global__ void __launch_bounds__(kThreads) advanceKernel(const __grid_constant__ Task task) {
  Advance<T>::run(task);
}
template <class T>
__global__ void __launch_bounds__(kThreads, 3) outputsKernel(const __grid_constant__ Task task) {
  Outputs<T>::run(task);
}
template <class T>
__global__ void __launch_bounds__(kThreads) retreatKernel(const __grid_constant__ Task task) {
  Retreat<T>::run(task);
}
template <class T, bool kChannel>
__global__ void __launch_bounds__(kThreads) differentiateKernel(const __grid_constant__ Task task) {
  Differentiate<T, kChannel>::run(task);
}

template <class T>
void (*kernelOf(Step step, bool ofChannels))(Task) {
  switch (step) {
    case Step::Prepare:
      return ofChannels ? prepareKernel<T, true> : prepareKernel<T, false>;
    case Step::Advance:
      return advanceKernel<T>;
    case Step::Outputs:
      return outputsKernel<T>;
    case Step::Retreat:
      return retreatKernel<T>;
    case Step::Differentiate:
      return ofChannels ? differentiateKernel<T, true> : differentiateKernel<T, false>;
  }
  return nullptr;
}

}  // namespace

int launch(Step step, const Task& task, void* stream) {
  const int64_t blocks = ctasOf(step, task);
  if (blocks == 0) return cudaSuccess;
  const bool ofChannels = task.width > 1;
  const auto kernel = task.type == seqparBfloat16 ? kernelOf<Bf16>(step, ofChannels) : kernelOf<Fp16>(step, ofChannels);
  return launchKernel(kernel, gridOf(blocks, 0), kThreads, sharedBytes(step, ofChannels), stream, false, task);
}

}  // namespace seqpar::attn::delta::half
