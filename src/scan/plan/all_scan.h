// All-Scan from a checked problem to its results.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// The rank at every position of a scan.
std::vector<int> scanRanks(int size, seqparDirection_t direction);

/// The node of every position of a scan.
std::vector<int> scanNodes(const Communicator& comm, seqparDirection_t direction);

/// Collective: runs `choice` on `stream` (null: in the call).
void runScan(Communicator& comm, std::shared_ptr<const ScanProblem> problem, const seqparScanEstimate_t& choice,
             HostStream* stream);

}  // namespace seqpar
