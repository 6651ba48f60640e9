// States before all chunks that the forward keeps for the backward, by the kernels of chunks/head_chain_sm90.h and
// backward/group_sm90.h: the backward then computes only their gradients. Only in builds with CUDA.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// The bytes of the states of `problem`, which must not be packed, in one segment; 0: the functions below do not
/// support it, or it is not faster. Does not check pointers and strides.
size_t keptStatesSize(const LinearProblem& problem);

/// launchForward() of all heads, with `pass` as there but without storesMaps, which also writes `states`:
/// keptStatesSize() bytes, aligned to 16. `saved`: as for launchForwardAndSave(); NULL: not written.
int launchForwardAndKeep(const Outputs& pass, float* saved, void* states, const Launch& launch);

/// launchGradients(), or with `gradientsFirst` launchGradientsFirst(), which read `states` and launch nothing for them.
int launchGradientsOfKept(const Gradients& pass, const void* states, bool gradientsFirst, const Launch& launch);

/// The bytes of their workspace.
size_t gradientsOfKeptSize(const LinearProblem& problem, const Segments& segments);

}  // namespace seqpar::attn
