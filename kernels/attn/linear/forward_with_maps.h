// The forward of channel decays in two calls, of which the first one yields maps for a scan between ranks, and the
// second one needs the state before the tokens (chunks/channel_chain_sm90.h). Only in builds with CUDA.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// The maps of a head, per segment, that launchForwardMaps() writes; 0: it does not support `problem`. Does not check
/// pointers and strides. Not for packed sequences.
int forwardMaps(const LinearProblem& problem);

/// The launches of launchForward() of all heads that do not need pass.initial. Writes pass.maps, unless their pointers
/// are NULL; maps that later ones have forgotten are undefined.
int launchForwardMaps(const Outputs& pass, const Launch& launch);

/// The others, with otherwise equal arguments. Between the two calls pass.workspace must not change.
int launchForwardAfterMaps(const Outputs& pass, const Launch& launch);

}  // namespace seqpar::attn
