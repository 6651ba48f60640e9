#include "kernels/attn/linear/fold_kernel.h"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn {
namespace {

/// blockIdx.y is the head, blockIdx.z the sequence.
__global__ void __launch_bounds__(kFoldThreads) foldKernel(const __grid_constant__ Fold fold) {
  foldPart(fold, blockIdx.x, blockIdx.y, blockIdx.z);
}

}  // namespace

int launchFold(const Fold& fold, const Launch& launch) {
  const LinearProblem& problem = fold.problem;
  if (problem.batch == 0 || fold.heads.count == 0) return cudaSuccess;
  const auto columns = static_cast<unsigned>((problem.dk * problem.dv / 4 + kFoldThreads - 1) / kFoldThreads);
  const dim3 grid(columns, static_cast<unsigned>(fold.heads.count), static_cast<unsigned>(problem.batch));
  return launchKernel(foldKernel, grid, kFoldThreads, 0, launch.stream, startsEarly(recordOf(fold), launch), fold);
}

}  // namespace seqpar::attn
