// The launches of the delta rule's kernels for 16-bit tensors on sm_90a.
#include "kernels/attn/linear/delta/half/advance_sm90.h"
#include "kernels/attn/linear/delta/half/differentiate_channels_sm90.h"
#include "kernels/attn/linear/delta/half/differentiate_mild.h"
#include "kernels/attn/linear/delta/half/differentiate_states_sm90.h"
#include "kernels/attn/linear/delta/half/differentiate_sums.h"
#include "kernels/attn/linear/delta/half/differentiate_sums_sm90.h"
#include "kernels/attn/linear/delta/half/differentiate_tokens_sm90.h"
#include "kernels/attn/linear/delta/half/retreat_sm90.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::delta::half {
namespace {

template <class T>
__global__ void __launch_bounds__(threadsOfSm90(Step::Advance))
    advanceSm90Kernel(const __grid_constant__ RowsTask task) {
  AdvanceSm90<T>::run(task);
}
template <class T>
__global__ void __launch_bounds__(threadsOfSm90(Step::Retreat)) retreatSm90Kernel(const __grid_constant__ Task task) {
  RetreatSm90<T>::run(task);
}
template <class T, bool kTwo, bool kShared, bool kChannel>
__global__ void __launch_bounds__(kThreadsSm90, DifferentiateSm90Memory::kCtas)
    differentiateSm90Kernel(const __grid_constant__ Task task) {
  DifferentiateSm90<T, kTwo, kShared, kChannel>::run(task);
}
template <class T>
__global__ void __launch_bounds__(kDifferentiateThreads) differentiateWideKernel(const __grid_constant__ Task task) {
  Differentiate<T, true, true>::run(task);
}

template <class T, bool kChannel>
void (*differentiateOf(const Task& task))(Task) {
  const bool two = paddedColumns(task) > kColumns;
  if (task.heads > task.keyHeads) {
    return two ? differentiateSm90Kernel<T, true, true, kChannel> : differentiateSm90Kernel<T, false, true, kChannel>;
  }
  return two ? differentiateSm90Kernel<T, true, false, kChannel> : differentiateSm90Kernel<T, false, false, kChannel>;
}
template <class T>
void (*kernelOf(Step step, const Task& task))(Task) {
  if (step == Step::Retreat) return retreatSm90Kernel<T>;
  if (isWide(step, task)) return differentiateWideKernel<T>;
  return task.width > 1 ? differentiateOf<T, true>(task) : differentiateOf<T, false>(task);
}

}  // namespace

int launchSm90(Step step, const Task& task, void* stream) {
  const int64_t blocks = ctasOfSm90(step, task);
  if (blocks == 0) return cudaSuccess;
  if (task.readsRows && step != Step::Differentiate) return launchRowsSm90(step, task, stream);
  if (task.marks != nullptr) return launchMarkedSm90(step, task, stream);
  const bool bf16 = task.type == seqparBfloat16;
  const auto launch = [&](auto kernel, const auto& arguments) {
    return launchKernel(kernel, gridOf(blocks, 0), threadsOfSm90(step, task), sharedBytesSm90(step, task), stream,
                        false, arguments);
  };
  if (step != Step::Advance) return launch(bf16 ? kernelOf<Bf16>(step, task) : kernelOf<Fp16>(step, task), task);
  RowsTask rows;
  encodeRows(rows, task, step);
  return launch(bf16 ? advanceSm90Kernel<Bf16> : advanceSm90Kernel<Fp16>, rows);
}

}  // namespace seqpar::attn::delta::half
