// The element-wise All-Scan between peers: kernels that reach each other by load and store.
#pragma once

#include <span>

#include "device/group.h"
#include "kernels/peers.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// Collective over the peers in `order`, the peer at each position (this one among them): enqueues the scan on `stream`
/// of the current device; one launch a call, or one for each 4096 heads. SUM, SCALAR and DIAG; HIER is TRANSPOSED.
/// InvalidUsage for other problems; UnhandledCudaError.
void launchDeviceScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                      const seqparScanEstimate_t& choice, DeviceStream stream);

}  // namespace seqpar
