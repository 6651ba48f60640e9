// The kernel of probe_program.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/scan/probe_program.h"

namespace seqpar {

/// Store the times of this rank's view.channels channels to `times`, memory that the device can write; a channel that
/// times out stores nothing. The token probe runs before the stream probe.
cudaError_t launchTokenProbe(const PeerView& view, ProbeTimes* times, cudaStream_t stream);
cudaError_t launchStreamProbe(const PeerView& view, ProbeTimes* times, cudaStream_t stream);

}  // namespace seqpar
