// All-Scan between peers, by kernels that use load and store.
#pragma once

#include <memory>
#include <span>

#include "device/group.h"
#include "kernels/peers.h"
#include "scan/backend.h"

namespace seqpar {

/// Collective over `comm`; all its ranks must be peers. Measures their links.
std::unique_ptr<ScanBackend> makePeerScans(Communicator& comm);

/// Collective over the peers in `order`, the peer at each position (including this one): enqueues the scan on `stream`
/// of the current device; one launch per call, or one per 4096 heads. Throws InvalidUsage for problems that the row
/// does not support here, and UnhandledCudaError.
void launchPeerScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                    const ScanAlgorithm& row, DeviceStream stream);

/// ScanBackend::makeHeadWindow() for a communicator with only peers.
std::unique_ptr<HeadWindow> makePeerHeadWindow(Communicator& comm, int64_t heads, int64_t elements,
                                               seqparDirection_t direction);

}  // namespace seqpar
