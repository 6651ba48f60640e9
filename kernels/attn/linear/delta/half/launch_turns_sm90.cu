// The launch of Prepare with marks.
#include "kernels/attn/linear/delta/half/prepare_turns_sm90.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::delta::half {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads, kTurnsCtas) prepareTurnsKernel(const __grid_constant__ Task task) {
  prepareTurns<T>(task);
}

}  // namespace

int launchTurnsSm90(const Task& task, void* stream) {
  return launchKernel(prepareTurnsKernel<Bf16>, gridOf(ctasOfSm90(Step::Prepare, task), 0), kThreads,
                      sharedBytesSm90(Step::Prepare, task), stream, false, task);
}

}  // namespace seqpar::attn::delta::half
