// How the backward pass of a problem is laid out: blocks of the state, terms that are added up, scratch. Compiles
// everywhere.
#pragma once

#include "kernels/attn/linear/backward/task.h"

namespace seqpar::attn::backward {

/// Most CTAs that have scratch; more than these are not launched.
constexpr int kMostCtas = 320;

/// 64 or 128: rows and columns of the kernels' blocks.
int dimensionOf(const LinearProblem& problem);
/// The same of the largest kernels that may do it. Those of sm_90 have kBlock alone, of which short heads use a part;
/// with decays of channels they leave strong ones to the others, and short heads altogether.
int mostDimensionOf(const LinearProblem& problem);

/// Where things lie in gradientsWorkspaceSize() bytes. An offset below 0: not needed.
struct Workspace {
  int64_t states = -1;                            ///< of the chunks of each CTA's segment
  int64_t strong = -1;                            ///< a word for each item, for the kernels of sm_90
  int64_t decays = -1;                            ///< of channels, of the chunks of each CTA's segment, for the same
  int64_t dq = -1, dk = -1, dv = -1, gates = -1;  ///< fp32 terms
  int64_t size = 0;
};
Workspace workspaceOf(const LinearProblem& problem, const Segments& segments);

/// What passes have in common.
Task taskOf(const LinearProblem& problem, const Segments& segments, const HeadRange& heads, const Input& dOut);

}  // namespace seqpar::attn::backward
