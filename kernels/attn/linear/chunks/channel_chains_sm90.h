// The forward by heads for channel decays, for launch_head_chains_sm90.cu.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn::forward_sm90 {

/// Whether the forward of `problem` is faster by channel_chain_sm90.h: bf16, keys of more than 128 channels.
bool formsChannelChains(const LinearProblem& problem);

/// The bytes of Outputs::workspace for that.
size_t channelChainsSize(const LinearProblem& problem);

/// The bytes of the operands that the backward also reads (keptStatesSize()).
size_t keptOperandsSize(const LinearProblem& problem);

/// Launches it, with `pass` as for launchForward(); `saved`: as for launchForwardAndSave(), NULL: not written; `kept`:
/// out: keptOperandsSize() bytes for the backward, NULL: not written. Returns false if it is not possible, and launches
/// nothing.
bool launchChannelChains(const Outputs& pass, float* saved, void* kept, const Launch& launch, int& error);

}  // namespace seqpar::attn::forward_sm90
