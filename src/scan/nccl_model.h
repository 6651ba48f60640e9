// Cost model of All-Scan over NCCL. A step of small messages costs alpha; larger ones add the bytes that a rank
// receives or sends, the larger of the two. The algorithms' formulas are in their files.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "scan/affine/affine.h"

namespace seqpar {

/// Cost of a step over NCCL.
struct NcclLink {
  double alpha = 0;           ///< seconds for a step of small messages
  double secondsPerByte = 0;  ///< of a rank that sends and receives a stream

  /// NCCL runs this many sends and receives of a channel concurrently (NCCL_MAX_DEV_WORK_P2P_PER_BATCH).
  static constexpr double kPeersAtOnce = 8;

  double step(double bytes) const { return alpha + bytes * secondsPerByte; }
  /// A step that sends `bytes` in total to all other positions.
  double allToAll(double positions, double bytes) const {
    return std::ceil((positions - 1) / kPeersAtOnce) * alpha + bytes * secondsPerByte;
  }
  /// Block k reaches the last position after P - 1 + k steps.
  double chain(double positions, double bytes, double blocks) const {
    return (positions - 2 + blocks) * step(bytes / blocks);
  }
  /// All-to-all of maps, all-to-all of states.
  double transposed(double positions, double state, double map) const {
    const double others = (positions - 1) / positions;
    return allToAll(positions, others * map) + allToAll(positions, others * state);
  }
};

struct NcclLinks {
  NcclLink node;     ///< between ranks of one node
  NcclLink network;  ///< between nodes; equals `node` if there is one node
};

/// Arguments of the formulas: positions, and bytes of a state and of a map.
struct NcclModel {
  double positions = 1, state = 0, map = 0;
  NcclLink flat;  ///< for algorithms without hierarchy
  NcclLinks links;
  int nodes = 0, smallestNode = 0, largestNode = 0;  ///< 0 if the positions of a node are not neighbors
};

/// An algorithm's time in seconds; infinity if the backend does not support it.
using NcclSeconds = double(const NcclModel& model, double blocks);

struct NcclScanSetting;

/// An algorithm over NCCL, in `blocks` blocks if it is pipelined (nccl/algorithms.h).
using NcclRun = void(const NcclScanSetting& setting, std::size_t blocks);

/// All algorithms with their best block count (or `blocks`, if not 0) and predicted time, fastest first; unsupported
/// ones have infinite time and are last. `nodes`: node of each position. Depends only on the arguments.
std::vector<seqparScanEstimate_t> ncclScanEstimates(const ScanProblem& problem, std::span<const int> nodes,
                                                    const NcclLinks& links, int blocks);

}  // namespace seqpar
