// A forward that also saves its initial states, by the kernel of chunks/head_chain_sm90.h without another launch.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Whether launchForwardAndSave() supports `problem`, unless it is packed; does not check pointers and strides. Only in
/// builds with CUDA.
bool savesInitial(const LinearProblem& problem);

/// launchForward() of all heads, with `pass` as there but without storesMaps, which also writes pass.initial, or zeros,
/// to `saved`: [batch][heads][dk][dv].
int launchForwardAndSave(const Outputs& pass, float* saved, const Launch& launch);

}  // namespace seqpar::attn
