// What each algorithm of All-Scan should cost on this communicator, and the choice between them.
#pragma once

#include <span>
#include <vector>

#include "plan/link.h"
#include "scan/affine.h"
#include "transport/mailbox.h"

namespace seqpar {

/// Where a scan runs: the same on all ranks.
struct ScanSetting {
  int positions = 1;
  std::span<const int> nodes;  ///< node of each position
  LinkModel links;
  size_t maxMessage = 0;
  size_t window = 0;
};

/// All algorithms with their best block count (or `blocks`, if not 0) and predicted time, fastest first; what cannot be
/// done has infinite time and comes last. Depends on nothing but its arguments, so that all ranks come to the same
/// choice.
std::vector<seqparScanEstimate_t> estimateScan(const ScanProblem& problem, const ScanSetting& setting, int blocks);

/// The estimate that will be used for `algorithm` (a seqparScanAlgorithm_t): the best of `estimates` for Auto.
seqparScanEstimate_t chooseScan(std::span<const seqparScanEstimate_t> estimates, int algorithm);

}  // namespace seqpar
