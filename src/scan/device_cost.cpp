#include "scan/device_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/convert.h"

namespace seqpar {
namespace {

// Seconds that do not depend on the links, and rates of a lane in bytes a second, fitted to measurements on H200.
constexpr double kCall = 3.3e-6;       // a kernel, its positions, and its last stores
constexpr double kHop = 0.2e-6;        // what a hop takes beside alpha
constexpr double kPeer = 0.5e-6;       // another peer that every position sends to and receives from
constexpr double kStep = 2.0e-6;       // another step of a lane: its barriers, and the wait for what it reads
constexpr double kStepBytes = 8192;    // that a lane sends a peer in a step
constexpr double kPieceBytes = 65536;  // of LASP1
constexpr double kStreamRate = 15e9;   // of a lane that hops lines
constexpr double kShardRate = 9e9;     // of a lane that scatters, scans and takes

/// Quantities that all formulas share. Seconds and bytes.
struct Terms {
  double ranks;  // P
  double lanes;
  double state;  // m: bytes of a state on the wire
  double map;    // bytes of a state with its factors
  double alpha;  // latency of a hop
  double perByte;
};

double seconds(int algorithm, const Terms& t) {
  const double hops = t.ranks - 1;
  const double moreSteps = std::max(0.0, t.state / (kStepBytes * t.lanes) - 1);
  const double stream = t.state * (t.perByte + 1 / (t.lanes * kStreamRate));
  switch (algorithm) {
    case seqparScanChain:
      return hops * (t.alpha + kHop) + stream;
    case seqparScanOneshot:
      return t.alpha + hops * (t.map * t.perByte + kPeer) + moreSteps * kStep;
    case seqparScanTransposed:
    case seqparScanHier:
      return 2 * t.alpha + kStep + hops * ((t.map + t.state) / t.ranks * t.perByte + kPeer) +
             t.state / (t.lanes * kShardRate);
    case seqparScanDoubling: {
      const double rounds = t.ranks <= 2 ? 1 : std::ceil(std::log2(t.ranks - 1) + std::log2(4.0 / 3.0));
      return rounds * (t.alpha + kPeer + t.map * t.perByte) + moreSteps * (kStep + rounds * t.alpha);
    }
    case seqparScanLasp1:
      return hops * (t.alpha + kStep / 2 + std::min(t.state, kPieceBytes * t.lanes) * t.perByte) + stream;
    default:
      return t.alpha + hops * (t.map * t.perByte + 2 * kPeer) + moreSteps * 1.5 * kStep;
  }
}

}  // namespace

std::vector<seqparScanEstimate_t> estimateDeviceScan(const ScanProblem& problem, int positions, const DeviceLink& link,
                                                     int lanes) {
  Terms t{};
  t.ranks = positions;
  t.lanes = lanes;
  t.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  const double factors = static_cast<double>(problem.heads) *
                         (problem.op == seqparScanDiag ? static_cast<double>(problem.dk) : 1) * sizeof(float);
  t.map = t.state + factors;
  t.alpha = link.alpha;
  t.perByte = link.bytesPerSecond > 0 ? 1 / link.bytesPerSecond : 0;

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
