// Pass 3 of pairs of heads that share queries and keys (hopper/prepare_pair.cuh). Compiles everywhere.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Whether pass 3 on sm_90 processes two heads of the problem's shape at once.
inline bool pairsHeads(const LinearProblem& problem) {
  return problem.gate != Gate::Channel && problem.dv == 64 && problem.heads / problem.qkHeads % 2 == 0;
}

/// Whether the current device's pass 3 does. Only in builds with CUDA.
bool outputsArePaired(const LinearProblem& problem);

}  // namespace seqpar::attn
