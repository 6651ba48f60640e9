// All-Scan over NCCL, for communicators whose ranks do not all reach each other by load and store, and as the peer that
// direct kernels are compared with.
#pragma once

#include <span>
#include <vector>

#include "bootstrap/allgather.h"
#include "device/group.h"
#include "scan/backend.h"

namespace seqpar {

/// Collective over `comm`, which has NCCL: measures its steps.
std::unique_ptr<ScanBackend> makeNcclScans(Communicator& comm);

/// Collective over `group`, inside its enqueue(), with group.nccl() not null: the scan of `problem`, whose pointers are
/// to device memory, on `stream`. order[p] is the rank at position p (ascending or descending), nodes[p] its node.
/// `row` and `blocks` are the same on all ranks. InvalidUsage for an algorithm that is not done this way
/// (DOUBLING; HIER where the ranks of a node are not neighbors).
void ncclScan(DeviceGroup& group, const ScanProblem& problem, std::span<const int> order, std::span<const int> nodes,
              const ScanAlgorithm& row, int blocks, DeviceStream stream);

/// Collective: times neighbor exchanges of small and large messages. The same on all ranks.
NcclLinks measureNcclLinks(NcclComm& nccl, Allgather& control, std::span<const int> nodes);

}  // namespace seqpar
