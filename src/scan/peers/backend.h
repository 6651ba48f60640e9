// All-Scan between peers: kernels that reach each other by load and store.
#pragma once

#include <memory>
#include <span>

#include "device/group.h"
#include "kernels/peers.h"
#include "scan/backend.h"

namespace seqpar {

/// Collective over `comm`, whose ranks are all peers: measures their links.
std::unique_ptr<ScanBackend> makePeerScans(Communicator& comm);

/// Collective over the peers in `order`, the peer at each position (this one among them): enqueues the scan on `stream`
/// of the current device; one launch a call, or one for each 4096 heads. InvalidUsage for what the row cannot do here;
/// UnhandledCudaError.
void launchPeerScan(const PeerView& view, const ScanProblem& problem, std::span<const int> order,
                    const ScanAlgorithm& row, DeviceStream stream);

/// ScanBackend::makeHeadWindow() for a communicator whose ranks are all peers.
std::unique_ptr<HeadWindow> makePeerHeadWindow(Communicator& comm, int64_t heads, int64_t elements,
                                               seqparDirection_t direction);

}  // namespace seqpar
