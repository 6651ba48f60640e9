// States before all chunks that the forward keeps for the backward, by the kernels of chunks/head_chain_sm90.h and
// backward/group_sm90.h: the backward then computes only their gradients. With channel decays it keeps the operands of
// all chunks (backward/channel_chunks_sm90.h), which its chains read (chunks/channel_chain_sm90.h), and with many heads
// these states. Only in builds with CUDA.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// The bytes of the states of `problem`, or of operands and states, which must not be packed, in one segment; 0: the
/// functions below do not support it, or it is not faster. Does not check pointers and strides.
size_t keptStatesSize(const LinearProblem& problem);

/// launchForward() of all heads, with `pass` as there but without storesMaps, which also writes `states`:
/// keptStatesSize() bytes, aligned to 16. `saved`: as for launchForwardAndSave(); NULL: not written.
int launchForwardAndKeep(const Outputs& pass, float* saved, void* states, const Launch& launch);

/// launchGradients(), or with `gradientsFirst` launchGradientsFirst(), which read `states` and launch nothing for them.
/// With channel decays: launchGradientsWithMaps().
int launchGradientsOfKept(const Gradients& pass, const void* states, bool gradientsFirst, const Launch& launch);

/// The bytes of their workspace.
size_t gradientsOfKeptSize(const LinearProblem& problem, const Segments& segments);

}  // namespace seqpar::attn
