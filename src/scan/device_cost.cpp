#include "scan/device_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/convert.h"

namespace seqpar {
namespace {

// Seconds that do not depend on the links, as measured on H200.
constexpr double kCall = 2.0e-6;      // a kernel, its positions, and its last stores
constexpr double kFold = 0.05e-6;     // another line looked at and combined
constexpr double kStep = 0.6e-6;      // another step of a lane: its barriers, and states that are read anew
constexpr double kStepBytes = 16384;  // that a lane sends in a step

/// Quantities that all formulas share. Seconds and bytes.
struct Terms {
  double ranks;  // P
  double state;  // m: bytes of a state on the wire
  double map;    // bytes of a state with its factors
  double alpha;  // latency of a hop
  double perByte;
  double steps;  // of a lane
};

double seconds(int algorithm, const Terms& t) {
  const double hops = t.ranks - 1;
  switch (algorithm) {
    case seqparScanChain:
      return hops * t.alpha + t.state * t.perByte;
    case seqparScanOneshot:
      return t.alpha + hops * (t.map * t.perByte + kFold) + (t.steps - 1) * kStep;
    case seqparScanTransposed:
    case seqparScanHier:
      return 2 * t.alpha + hops * ((t.map + t.state) / t.ranks * t.perByte + kFold) +
             (t.steps / t.ranks - 1 > 0 ? t.steps / t.ranks - 1 : 0) * (kStep + 2 * t.alpha) + kStep;
    case seqparScanDoubling: {
      const double rounds = t.ranks <= 2 ? 1 : std::ceil(std::log2(t.ranks - 1) + std::log2(4.0 / 3.0));
      return rounds * (t.alpha + t.map * t.perByte + kFold) + (t.steps - 1) * (kStep + rounds * t.alpha);
    }
    case seqparScanLasp1:
      return hops * (t.alpha + std::min(t.state, kStepBytes * t.state / t.map) * t.perByte) + t.state * t.perByte +
             t.steps * (kStep + t.alpha);
    default:
      return t.alpha + hops * (t.map * t.perByte + 2 * kFold) + (t.steps - 1) * (kStep + t.alpha);
  }
}

}  // namespace

std::vector<seqparScanEstimate_t> estimateDeviceScan(const ScanProblem& problem, int positions, const DeviceLink& link,
                                                     int lanes) {
  Terms t{};
  t.ranks = positions;
  t.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  const double factors = static_cast<double>(problem.heads) *
                         (problem.op == seqparScanDiag ? static_cast<double>(problem.dk) : 1) * sizeof(float);
  t.map = t.state + factors;
  t.alpha = link.alpha;
  t.perByte = link.bytesPerSecond > 0 ? 1 / link.bytesPerSecond : 0;
  t.steps = std::max(1.0, t.state / (kStepBytes * lanes));

  std::vector<seqparScanEstimate_t> out;
  for (int algorithm = seqparScanChain; algorithm <= seqparScanLasp2; ++algorithm) {
    const double us = problem.op == seqparScanMatrix ? std::numeric_limits<double>::infinity()
                      : positions == 1               ? 0
                                                     : (kCall + seconds(algorithm, t)) * 1e6;
    out.push_back({algorithm, 1, us});
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.modelUs < b.modelUs; });
  return out;
}

}  // namespace seqpar
