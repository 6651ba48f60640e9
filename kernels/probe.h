// The kernel of probe_lane.h.
#pragma once

#include "probe_lane.h"

namespace seqpar {

/// Stores the times of this rank's view.lanes lanes to `times`, memory that the device can write; a lane that gives up
/// stores nothing. `stream`: a cudaStream_t. First the tokens, then the stream.
void launchTokenProbe(const PeerView& view, ProbeTimes* times, void* stream);
void launchStreamProbe(const PeerView& view, ProbeTimes* times, void* stream);

}  // namespace seqpar
