// Pass 1 for maps that only a scan between ranks reads. Only in builds with CUDA.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// launchSegmentStates() and launchSegmentStateGradients() with `allSegments`, for maps that only a StateScan reads:
/// segments that token decays between them and the end of the rank's tokens (gradients: the start) have forgotten have
/// no maps. `scratch`: [batch][heads].
int launchScanMaps(const SegmentStates& pass, int* scratch, const Launch& launch);
int launchScanMaps(const SegmentStateGradients& pass, int* scratch, const Launch& launch);

}  // namespace seqpar::attn
