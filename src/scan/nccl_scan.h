// All-Scan over NCCL, for communicators whose ranks do not all reach each other by load and store, and as the peer that
// direct kernels are compared with.
#pragma once

#include <span>
#include <vector>

#include "bootstrap/allgather.h"
#include "device/group.h"
#include "scan/affine.h"

namespace seqpar {

/// Collective over `group`, inside its enqueue(), with group.nccl() not null: the scan of `problem`, whose pointers are
/// to device memory, on `stream`. order[p] is the rank at position p (ascending or descending), nodes[p] its node.
/// `choice` names algorithm and blocks, the same on all ranks. InvalidUsage for an algorithm that is not done this way
/// (DOUBLING; HIER where the ranks of a node are not neighbours).
void ncclScan(DeviceGroup& group, const ScanProblem& problem, std::span<const int> order, std::span<const int> nodes,
              const seqparScanEstimate_t& choice, DeviceStream stream);

/// What a step over NCCL costs.
struct NcclLink {
  double alpha = 0;           ///< seconds for a step of small messages
  double secondsPerByte = 0;  ///< of a rank that sends and receives a stream
};

struct NcclLinks {
  NcclLink node;     ///< between ranks of one node
  NcclLink network;  ///< between nodes; equals `node` if there is one node
};

/// Collective: times neighbour exchanges of small and large messages. The same on all ranks.
NcclLinks measureNcclLinks(NcclComm& nccl, Allgather& control, std::span<const int> nodes);

/// All algorithms with their best block count (or `blocks`, if not 0) and predicted time, fastest first; what cannot be
/// done has infinite time and comes last. Depends on nothing but its arguments.
std::vector<seqparScanEstimate_t> ncclScanEstimates(const ScanProblem& problem, std::span<const int> nodes,
                                                    const NcclLinks& links, int blocks);

}  // namespace seqpar
