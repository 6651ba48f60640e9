#include "scan/device_matrix_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/convert.h"
#include "scan/device_matrix.h"

namespace seqpar {
namespace {

constexpr double kCall = 4.0e-6;         // a kernel that loads its matrices before it can begin
constexpr double kChannelRate = 1.3e11;  // fp32 products and sums that a channel does in a second; measured on an H200
constexpr double kTeamsRate = 2.2e11;    // the same of the kernels for usual heads, in CHAIN
constexpr double kMapRate = 0.5;         // of that where maps travel; not measured
constexpr double kLasp1Panels = 2;       // that shared memory holds of heads with 128 rows

/// Quantities that all formulas share. Seconds and bytes.
struct Terms {
  double ranks, alpha;
  double state, map;  // sent: the states; what the maps of all groups are, each with its matrix
  double panel, hop;  // through a matrix: a panel, and all that a channel has of them
  double chainPanel;  // in CHAIN
  double panels;      // of a channel
  double compose;     // a channel's matrices through a matrix
};

/// Heads of the sizes that have kernels of their own.
bool areUsual(const ScanProblem& problem) {
  return (problem.dk == 64 || problem.dk == 128) && problem.dv % 16 == 0 && problem.stateType == seqparFloat32 &&
         problem.wireType == seqparFloat32;
}

double seconds(int algorithm, const Terms& t) {
  const double hops = t.ranks - 1;
  const double panel = algorithm == seqparScanChain ? t.chainPanel : t.panel;
  const double chain = t.panels * panel + hops * (panel + t.alpha);
  switch (algorithm) {
    case seqparScanChain:
      return std::max(chain, t.state + hops * t.alpha);
    case seqparScanLasp1:
      return std::max(chain + hops * (kLasp1Panels - 1) * t.panel, t.state + hops * t.alpha);
    case seqparScanTransposed:
    case seqparScanHier:
      return 2 * t.alpha + hops / t.ranks * (t.map + t.state) + 2 * t.hop / kMapRate;
    case seqparScanDoubling: {
      const double rounds = t.ranks <= 2 ? 1 : std::ceil(std::log2(t.ranks - 1) + std::log2(4.0 / 3.0));
      return rounds * (t.alpha + t.map + (t.hop + t.compose) / kMapRate);
    }
    default:
      return t.alpha + hops * t.map + t.ranks * t.hop / kMapRate;
  }
}

}  // namespace

std::vector<seqparScanEstimate_t> estimateDeviceMatrixScan(const ScanProblem& problem, int positions,
                                                           const DeviceLink& link, int channels) {
  const auto heads = static_cast<double>(problem.heads);
  const auto dk = static_cast<double>(problem.dk);
  const double panels = heads * std::ceil(static_cast<double>(problem.dv) / kPanelColumns);
  const double used = std::min<double>(std::min(channels, kMostMatrixChannels), panels);
  const double perByte = link.bytesPerSecond > 0 ? 1 / link.bytesPerSecond : 0;
  Terms t{};
  t.ranks = positions;
  t.alpha = link.alpha;
  t.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType)) * perByte;
  // Few panels go with a matrix: at worst one.
  t.map = t.state + panels * dk * dk * sizeof(float) * perByte;
  t.panels = std::ceil(panels / used);
  t.panel = 2 * dk * dk * kPanelColumns / kChannelRate;
  t.chainPanel = areUsual(problem) ? t.panel * kChannelRate / kTeamsRate : t.panel;
  t.hop = t.panels * t.panel;
  t.compose = t.panels * std::ceil(dk / kPanelColumns) * t.panel;

  std::vector<seqparScanEstimate_t> out;
  for (int algorithm = seqparScanChain; algorithm <= seqparScanLasp2; ++algorithm) {
    double us = positions == 1 ? 0 : std::numeric_limits<double>::infinity();
    if (positions > 1 && deviceMatrixFits(static_cast<seqparScanAlgorithm_t>(algorithm), problem, channels)) {
      us = (kCall + seconds(algorithm, t)) * 1e6;
    }
    out.push_back({algorithm, 1, us});
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.modelUs < b.modelUs; });
  return out;
}

}  // namespace seqpar
