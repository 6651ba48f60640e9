// The algorithms that a test iterates over: those of the table that a backend supports.
#pragma once

#include <vector>

#include "scan/registry.h"

namespace seqpar::test {

/// The algorithms of the rows that satisfy `can`.
template <typename Can>
std::vector<seqparScanAlgorithm_t> algorithmsThat(const Can& can) {
  std::vector<seqparScanAlgorithm_t> all;
  for (const ScanAlgorithm& row : scanAlgorithms()) {
    if (can(row)) all.push_back(row.id);
  }
  return all;
}

inline std::vector<seqparScanAlgorithm_t> allAlgorithms() {
  return algorithmsThat([](const ScanAlgorithm&) { return true; });
}
inline std::vector<seqparScanAlgorithm_t> peerAlgorithms() {
  return algorithmsThat([](const ScanAlgorithm& row) { return row.peers.seconds != nullptr; });
}
inline std::vector<seqparScanAlgorithm_t> matrixAlgorithms() {
  return algorithmsThat([](const ScanAlgorithm& row) { return row.matrix.seconds != nullptr; });
}
inline std::vector<seqparScanAlgorithm_t> ncclAlgorithms() {
  return algorithmsThat([](const ScanAlgorithm& row) { return row.nccl.seconds != nullptr; });
}

template <typename Random>
seqparScanAlgorithm_t oneOf(Random& random, const std::vector<seqparScanAlgorithm_t>& algorithms) {
  return algorithms[random() % algorithms.size()];
}

}  // namespace seqpar::test
