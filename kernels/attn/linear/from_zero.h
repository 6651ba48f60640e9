// A forward that starts before the state before its tokens is known, by the kernels of chunks/head_chain_sm90.h.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Whether the functions below support `problem`, unless it is packed, and are faster than to wait for the state before
/// the tokens: heads are in two parts. Does not check pointers and strides. Only in builds with CUDA.
bool forwardFromZero(const LinearProblem& problem);

/// launchForward() of all heads without pass.initial, which launchAddInitial() with otherwise equal arguments
/// completes. Between the two calls `workspace` must not change. Without pass.finalState.
int launchForwardFromZero(const Outputs& pass, const Launch& launch);
/// Adds the contribution of pass.initial to pass.out.
int launchAddInitial(const Outputs& pass, const Launch& launch);

}  // namespace seqpar::attn
