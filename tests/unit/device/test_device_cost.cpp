// The cost model of scans between GPUs: its order at the ends of the scale, and what it may not depend on.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "scan/registry.h"

using namespace seqpar;

namespace {

constexpr DeviceLink kLink{0.85e-6, 300e9};

ScanProblem problemOf(size_t heads) {
  ScanProblem problem;
  problem.heads = heads;
  problem.dk = 128;
  problem.dv = 128;
  problem.headFlags.assign(heads, 0);
  return problem;
}

double timeOf(const std::vector<seqparScanEstimate_t>& estimates, int algorithm) {
  for (const auto& each : estimates) {
    if (each.algorithm == algorithm) return each.modelUs;
  }
  return -1;
}

}  // namespace

TEST_CASE("All algorithms are estimated, fastest first") {
  const auto estimates = estimateDeviceScan(problemOf(32), 8, kLink, 32);
  std::set<int> algorithms;
  for (size_t i = 0; i < estimates.size(); ++i) {
    algorithms.insert(estimates[i].algorithm);
    CHECK(std::isfinite(estimates[i].modelUs));
    CHECK(estimates[i].modelUs > 0);
    if (i > 0) CHECK(estimates[i - 1].modelUs <= estimates[i].modelUs);
  }
  CHECK(algorithms.size() == scanAlgorithms().size());
}

TEST_CASE("Small scans select few hops, large scans a chain") {
  const auto large = estimateDeviceScan(problemOf(1024), 8, kLink, 32);
  CHECK(large.front().algorithm == seqparScanChain);
  const auto small = estimateDeviceScan(problemOf(1), 32, kLink, 32);
  CHECK(small.front().algorithm != seqparScanChain);
  CHECK(small.front().algorithm != seqparScanLasp1);
}

TEST_CASE("More ranks, more bytes and slower links never make a scan faster") {
  for (const size_t heads : {1, 8, 64, 512}) {
    for (const ScanAlgorithm& row : scanAlgorithms()) {
      const int algorithm = row.id;
      CAPTURE(heads, row.name);
      const double base = timeOf(estimateDeviceScan(problemOf(heads), 4, kLink, 32), algorithm);
      CHECK(timeOf(estimateDeviceScan(problemOf(2 * heads), 4, kLink, 32), algorithm) >= base);
      CHECK(timeOf(estimateDeviceScan(problemOf(heads), 8, kLink, 32), algorithm) >= base);
      CHECK(timeOf(estimateDeviceScan(problemOf(heads), 4, {1.7e-6, 300e9}, 32), algorithm) >= base);
      CHECK(timeOf(estimateDeviceScan(problemOf(heads), 4, {0.85e-6, 150e9}, 32), algorithm) >= base);
    }
  }
}

TEST_CASE("Device costs exclude MATRIX, and one rank costs nothing") {
  ScanProblem matrix = problemOf(4);
  matrix.op = seqparScanMatrix;
  for (const auto& each : estimateDeviceScan(matrix, 4, kLink, 32)) CHECK(std::isinf(each.modelUs));
  for (const auto& each : estimateDeviceScan(problemOf(4), 1, kLink, 32)) CHECK(each.modelUs == 0);
}
