// The common part of the cost models: every algorithm's predicted time, and the choice. Each backend's model is in
// host_model.h, peers_model.h, peers_matrix_model.h or nccl_model.h.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "scan/registry.h"

namespace seqpar {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The candidate numbers of blocks.
struct BlockRange {
  int given = 0;    ///< from the caller; 0: powers of two up to `most`
  size_t most = 1;  ///< for pipelined algorithms
};

/// All algorithms with their best number of blocks and its time, fastest first. Rows with can(row) false have infinite
/// time and are last; seconds(row, blocks) is called for the others.
template <typename Can, typename Seconds>
std::vector<seqparScanEstimate_t> estimateAlgorithms(BlockRange range, const Can& can, const Seconds& seconds) {
  std::vector<seqparScanEstimate_t> all;
  for (const ScanAlgorithm& row : scanAlgorithms()) {
    seqparScanEstimate_t best{row.id, std::max(1, range.given), kNever};
    const size_t most = !can(row) ? 0 : row.pipelined && range.given == 0 ? range.most : 1;
    for (size_t blocks = 1; blocks <= most; blocks *= 2) {
      const int count = range.given > 0 ? range.given : static_cast<int>(blocks);
      const double us = seconds(row, static_cast<double>(count)) * 1e6;
      if (us < best.modelUs) best = {row.id, count, us};
    }
    all.push_back(best);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.modelUs < b.modelUs; });
  return all;
}

/// The estimate to use for `algorithm` (a seqparScanAlgorithm_t): the best of `estimates` for Auto. Throws
/// InvalidArgument for an unknown number.
seqparScanEstimate_t chooseScan(std::span<const seqparScanEstimate_t> estimates, int algorithm);

/// The number of elements of a head's transition.
inline double transitionOfHead(const ScanProblem& problem) {
  const auto dk = static_cast<double>(problem.dk);
  if (problem.op == seqparScanMatrix) return dk * dk;
  return problem.op == seqparScanDiag ? dk : 1;
}

}  // namespace seqpar
