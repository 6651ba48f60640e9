// The launches of the delta rule's kernels for 16-bit tensors on sm_90a.
#include "kernels/attn/linear/delta/half/advance_sm90.h"
#include "kernels/attn/linear/delta/half/differentiate_sm90.h"
#include "kernels/attn/linear/delta/half/prepare_sm90.h"
#include "kernels/attn/linear/delta/half/retreat_sm90.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::delta::half {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreadsSm90, PrepareSm90Memory::kCtas)
    prepareSm90Kernel(const __grid_constant__ Task task) {
  PrepareSm90<T>::run(task);
}
template <class T>
__global__ void __launch_bounds__(ChainSm90Memory::kThreads) advanceSm90Kernel(const __grid_constant__ Task task) {
  AdvanceSm90<T>::run(task);
}
template <class T>
__global__ void __launch_bounds__(ChainSm90Memory::kThreads) retreatSm90Kernel(const __grid_constant__ Task task) {
  RetreatSm90<T>::run(task);
}
template <class T, bool kTwo, bool kShared>
__global__ void __launch_bounds__(kThreadsSm90, DifferentiateSm90Memory::kCtas)
    differentiateSm90Kernel(const __grid_constant__ Task task) {
  DifferentiateSm90<T, kTwo, kShared>::run(task);
}

template <class T>
void (*kernelOf(Step step, const Task& task))(Task) {
  if (step == Step::Prepare) return prepareSm90Kernel<T>;
  if (step == Step::Advance) return advanceSm90Kernel<T>;
  if (step == Step::Retreat) return retreatSm90Kernel<T>;
  const bool two = paddedColumns(task) > kColumns;
  if (task.heads > task.keyHeads) {
    return two ? differentiateSm90Kernel<T, true, true> : differentiateSm90Kernel<T, false, true>;
  }
  return two ? differentiateSm90Kernel<T, true, false> : differentiateSm90Kernel<T, false, false>;
}

}  // namespace

int launchSm90(Step step, const Task& task, void* stream) {
  const int64_t blocks = ctasOfSm90(step, task);
  if (blocks == 0) return cudaSuccess;
  const auto kernel = task.type == seqparBfloat16 ? kernelOf<Bf16>(step, task) : kernelOf<Fp16>(step, task);
  return launchKernel(kernel, gridOf(blocks, 0), threadsOfSm90(step), sharedBytesSm90(step), stream,
                      task.overlaps && step == Step::Prepare, task);
}

}  // namespace seqpar::attn::delta::half
