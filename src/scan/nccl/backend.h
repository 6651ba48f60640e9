// All-Scan over NCCL, for communicators without load and store access between all ranks, and as the baseline of the
// direct kernels.
#pragma once

#include <span>
#include <vector>

#include "bootstrap/allgather.h"
#include "device/group.h"
#include "scan/backend.h"

namespace seqpar {

/// Collective over `comm`, which must have NCCL: measures its steps.
std::unique_ptr<ScanBackend> makeNcclScans(Communicator& comm);

/// Collective over `group`, inside its enqueue(); group.nccl() is not null. Enqueues the scan of `problem`, with
/// pointers to device memory, on `stream`. order[p] is the rank at position p (ascending or descending), nodes[p] its
/// node. `row` and `blocks` are the same on all ranks. Throws InvalidUsage for an algorithm that NCCL does not support
/// (DOUBLING; HIER if the ranks of a node are not neighbors).
void ncclScan(DeviceGroup& group, const ScanProblem& problem, std::span<const int> order, std::span<const int> nodes,
              const ScanAlgorithm& row, int blocks, DeviceStream stream);

/// Collective: times neighbor exchanges of small and large messages. The result is the same on all ranks.
NcclLinks measureNcclLinks(NcclComm& nccl, Allgather& control, std::span<const int> nodes);

}  // namespace seqpar
