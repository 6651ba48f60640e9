// Pass 1 for maps that only a scan between ranks reads. Only in builds with CUDA.
#pragma once

#include <limits>

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

constexpr float kReadDecay = 0x1p-125F;  ///< a scan counts the product of smaller decays as 0
/// The log-decay of a map that does not exist, as those that apply before it.
constexpr float kNoMap = std::numeric_limits<float>::infinity();

/// launchSegmentStates() and launchSegmentStateGradients() with `allSegments`, for maps that only a StateScan reads:
/// they may be those of other divisions of the tokens, at most as many as there are segments. Tokens that token decays
/// between them and the end of the rank's tokens (gradients: the start) have forgotten are in none. `scratch`:
/// [batch][heads].
int launchScanMaps(const SegmentStates& pass, int* scratch, const Launch& launch);
int launchScanMaps(const SegmentStateGradients& pass, int* scratch, const Launch& launch);

}  // namespace seqpar::attn
