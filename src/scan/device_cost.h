// What each algorithm of the element-wise All-Scan should cost between GPUs that reach each other by load and store.
#pragma once

#include <vector>

#include "scan/affine.h"

namespace seqpar {

/// The links between peers, all alike.
struct DeviceLink {
  double alpha = 0;           ///< seconds from a store to the peer's having seen it
  double bytesPerSecond = 0;  ///< of the stores to one peer; 0: unknown, as where there is one peer
};

/// All algorithms with their predicted time, fastest first; what cannot be done has infinite time and comes last. The
/// same on all ranks for the same arguments. `channels`: PeerView::channels.
std::vector<seqparScanEstimate_t> estimateDeviceScan(const ScanProblem& problem, int positions, const DeviceLink& link,
                                                     int channels);

}  // namespace seqpar
