// The launches of Prepare and Advance with marks (marks_sm90.h).
#include "kernels/attn/linear/delta/half/advance_sm90.h"
#include "kernels/attn/linear/delta/half/prepare_turns_sm90.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::delta::half {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads, kTurnsCtas) prepareTurnsKernel(const __grid_constant__ Task task) {
  prepareTurns<T>(task);
}
template <class T>
__global__ void __launch_bounds__(threadsOfSm90(Step::Advance))
    advanceMarkedKernel(const __grid_constant__ RowsTask task) {
  AdvanceSm90<T, true>::run(task);
}

}  // namespace

int launchMarkedSm90(Step step, const Task& task, void* stream) {
  const bool prepares = step == Step::Prepare;
  const auto launch = [&](auto kernel, const auto& arguments) {
    return launchKernel(kernel, gridOf(ctasOfSm90(step, task), 0), prepares ? kThreads : threadsOfSm90(step, task),
                        sharedBytesSm90(step, task), stream, !prepares, arguments);
  };
  if (prepares) return launch(prepareTurnsKernel<Bf16>, task);
  RowsTask rows;
  encodeRows(rows, task, step);
  return launch(advanceMarkedKernel<Bf16>, rows);
}

}  // namespace seqpar::attn::delta::half
