// The kernel of probe_lane.h.
#pragma once

#include "probe_lane.h"

namespace seqpar {

/// Stores this rank's times to `times`, memory that the device can write, unless it gives up. `stream`: a cudaStream_t.
void launchProbe(const PeerView& view, ProbeTimes* times, void* stream);

}  // namespace seqpar
