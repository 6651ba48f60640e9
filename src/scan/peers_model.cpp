#include "scan/peers_model.h"

#include "base/convert.h"
#include "scan/cost.h"

namespace seqpar {
namespace {

constexpr double kChannelRowBytes = 16384;  // in flight per channel, at most
constexpr double kRowBytes = 512 * 1024;    // in flight in all channels, at most
constexpr double kFullChannels = 32;        // further channels add no threads

PeerModel makeModel(const ScanProblem& problem, int positions, const DeviceLink& link, int channels) {
  PeerModel m;
  m.ranks = positions;
  m.channels = channels;
  m.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  m.map = m.state + static_cast<double>(problem.heads) * transitionOfHead(problem) * sizeof(float);
  m.alpha = link.alpha;
  m.perByte = link.bytesPerSecond > 0 ? 1 / link.bytesPerSecond : 0;
  m.fast = problem.stateType == seqparFloat32 && problem.wireType == seqparFloat32;
  m.threads = std::min(1.0, m.channels / kFullChannels);
  m.moreRows = std::max(0.0, m.state / std::min(kRowBytes, kChannelRowBytes * m.channels) - 1);
  m.oneRow = m.fast && m.moreRows == 0;
  m.stream = m.state * (m.perByte + 1 / (m.threads * PeerModel::kStreamRate));
  return m;
}

}  // namespace

std::vector<seqparScanEstimate_t> estimateDeviceScan(const ScanProblem& problem, int positions, const DeviceLink& link,
                                                     int channels) {
  const PeerModel model = makeModel(problem, positions, link, channels);
  return estimateAlgorithms(
      {}, [&](const ScanAlgorithm& row) { return problem.op != seqparScanMatrix && row.peers.seconds != nullptr; },
      [&](const ScanAlgorithm& row, double) {
        return positions == 1 ? 0 : PeerModel::kCall + row.peers.seconds(model);
      });
}

}  // namespace seqpar
