// The kernel of probe_channel.h.
#pragma once

#include "kernels/probe_program.h"

namespace seqpar {

/// Stores the times of this rank's view.channels channels to `times`, memory that the device can write; a channel that
/// gives up stores nothing. `stream`: a cudaStream_t. First the tokens, then the stream.
void launchTokenProbe(const PeerView& view, ProbeTimes* times, void* stream);
void launchStreamProbe(const PeerView& view, ProbeTimes* times, void* stream);

}  // namespace seqpar
