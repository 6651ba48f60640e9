#include "scan/device_matrix_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/convert.h"
#include "scan/device_matrix.h"

namespace seqpar {
namespace {

constexpr double kCall = 4.0e-6;    // a kernel that loads its matrices before it can begin
constexpr double kLaneRate = 2e11;  // fp32 products and sums a lane does in a second

/// Quantities that all formulas share. Seconds and bytes.
struct Terms {
  double ranks, state, matrices, alpha, perByte;
  double hop;      // a state through a matrix
  double compose;  // a matrix through a matrix
};

double seconds(int algorithm, const Terms& t) {
  const double hops = t.ranks - 1;
  const double map = (t.state + t.matrices) * t.perByte;
  switch (algorithm) {
    case seqparScanChain:
      return hops * t.alpha + t.state * t.perByte + t.ranks * t.hop;
    case seqparScanOneshot:
      return t.alpha + hops * (map + t.hop);
    case seqparScanTransposed:
    case seqparScanHier:
      return 2 * t.alpha + hops / t.ranks * (map + t.state * t.perByte) + t.hop * 2;
    case seqparScanDoubling: {
      const double rounds = t.ranks <= 2 ? 1 : std::ceil(std::log2(t.ranks - 1) + std::log2(4.0 / 3.0));
      return rounds * (t.alpha + map + t.hop + t.compose);
    }
    case seqparScanLasp1:
      return hops * (t.alpha + t.state * t.perByte + t.hop);
    default:
      return t.alpha + hops * (map + t.hop);
  }
}

}  // namespace

std::vector<seqparScanEstimate_t> estimateDeviceMatrixScan(const ScanProblem& problem, int positions,
                                                           const DeviceLink& link, int lanes) {
  const auto heads = static_cast<double>(problem.heads);
  const auto dk = static_cast<double>(problem.dk);
  Terms t{};
  t.ranks = positions;
  t.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  t.matrices = heads * dk * dk * sizeof(float);
  t.alpha = link.alpha;
  t.perByte = link.bytesPerSecond > 0 ? 1 / link.bytesPerSecond : 0;
  t.hop = 2 * static_cast<double>(problem.elements()) * dk / (lanes * kLaneRate);
  t.compose = 2 * heads * dk * dk * dk / (lanes * kLaneRate);

  std::vector<seqparScanEstimate_t> out;
  for (int algorithm = seqparScanChain; algorithm <= seqparScanLasp2; ++algorithm) {
    double us = std::numeric_limits<double>::infinity();
    if (deviceMatrixFits(static_cast<seqparScanAlgorithm_t>(algorithm), problem)) {
      us = positions == 1 ? 0 : (kCall + seconds(algorithm, t)) * 1e6;
    }
    out.push_back({algorithm, 1, us});
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.modelUs < b.modelUs; });
  return out;
}

}  // namespace seqpar
