// The launches of Prepare, Advance and Retreat with Task::readsRows.
#include "kernels/attn/linear/delta/half/advance_rows_sm90.h"
#include "kernels/attn/linear/delta/half/prepare_sm90.h"
#include "kernels/attn/linear/delta/half/retreat_rows_sm90.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::delta::half {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreadsSm90, PrepareSm90Memory::kCtas)
    prepareRowsKernel(const __grid_constant__ Task task) {
  PrepareSm90<T>::run(task);
}
template <class T>
__global__ void __launch_bounds__(threadsOfSm90Rows(Step::Advance))
    advanceRowsKernel(const __grid_constant__ RowsTask task) {
  AdvanceRowsSm90<T>::run(task);
}
template <class T>
__global__ void __launch_bounds__(threadsOfSm90Rows(Step::Retreat))
    retreatRowsKernel(const __grid_constant__ RowsTask task) {
  RetreatRowsSm90<T>::run(task);
}
template <class T>
void (*chainOf(Step step))(RowsTask) {
  return step == Step::Retreat ? retreatRowsKernel<T> : advanceRowsKernel<T>;
}

}  // namespace

int launchRowsSm90(Step step, const Task& task, void* stream) {
  const bool bf16 = task.type == seqparBfloat16;
  const auto launch = [&](auto kernel, const auto& arguments) {
    return launchKernel(kernel, gridOf(ctasOfSm90(step, task), 0), threadsOfSm90(step, task),
                        sharedBytesSm90(step, task), stream, isChain(step) && task.overlaps, arguments);
  };
  if (step == Step::Prepare) return launch(bf16 ? prepareRowsKernel<Bf16> : prepareRowsKernel<Fp16>, task);
  RowsTask rows;
  encodeRows(rows, task, step);
  return launch(bf16 ? chainOf<Bf16>(step) : chainOf<Fp16>(step), rows);
}

}  // namespace seqpar::attn::delta::half
