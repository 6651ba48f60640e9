// Two heads that one CTA of the sm_90 kernels processes: a pair that shares queries and keys
// (forward_sm90/transform_factors_sm90.cuh, backward/pair_sm90.h), or short heads with channel decays
// (backward/heads_sm90.h). Compiles everywhere.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Whether pass 3 on sm_90 processes two heads of the problem's shape at once.
inline bool pairsHeads(const LinearProblem& problem) {
  return problem.gate != Gate::Channel && problem.dv == 64 && problem.heads / problem.qkHeads % 2 == 0;
}

/// Whether a CTA of the sm_90 kernels with channel decays processes two heads of the problem's shape, each with its own
/// queries and keys: both passes 1, and pass 3 of the backward.
inline bool joinsShortHeads(const LinearProblem& problem) {
  const auto isShort = [](int dimension) { return dimension > 32 && dimension <= 64; };
  return problem.gate == Gate::Channel && isShort(problem.dk) && isShort(problem.dv);
}

/// Whether the current device's pass 3 does. Only in builds with CUDA.
bool outputsArePaired(const LinearProblem& problem);
/// The same for the backward's.
bool gradientsArePaired(const LinearProblem& problem);
/// The heads that the backward's pass 3 processes at once on the current device. Only in builds with CUDA.
int gradientsAtOnce(const LinearProblem& problem);

/// `paired`: gradientsArePaired()'s result, for which less memory suffices.
size_t gradientsWorkspaceSize(const LinearProblem& problem, const Segments& segments, bool paired);

}  // namespace seqpar::attn
