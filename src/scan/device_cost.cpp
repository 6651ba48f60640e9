#include "scan/device_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/convert.h"

namespace seqpar {
namespace {

// Seconds that do not depend on the links, and rates, fitted to measurements on H200.
constexpr double kCall = 1.8e-6;            // a kernel, its positions, and its last stores
constexpr double kGeneral = 2.0e-6;         // what a program for all vecs takes beside one for fast vecs
constexpr double kHop = 0.1e-6;             // what a hop takes beside alpha
constexpr double kPeer = 0.25e-6;           // another peer that every position sends to and receives from
constexpr double kFold = 0.55e-6;           // waiting for several peers
constexpr double kShard = 0.8e-6;           // the second hop: sharing out what was scanned
constexpr double kStep = 1.0e-6;            // another row: a barrier, and the wait for what it reads
constexpr double kPieceBytes = 65536;       // of LASP1, a channel
constexpr double kStreamRate = 1.5e12;      // bytes a second of all threads that hop packets
constexpr double kShardRate = 0.25e12;      // and of those that scatter, scan and take
constexpr double kChannelRowBytes = 16384;  // that a channel has in flight at most,
constexpr double kRowBytes = 512 * 1024;    // and that all channels have
constexpr double kFullChannels = 32;        // from here on more channels are not more threads

/// Quantities that all formulas share. Seconds and bytes.
struct Terms {
  double ranks;  // P
  double channels;
  double state;  // m: bytes of a state on the wire
  double map;    // bytes of a state with its factors
  double alpha;  // latency of a hop
  double perByte;
  bool fast;  // vecs may be
};

double seconds(int algorithm, const Terms& t) {
  const double hops = t.ranks - 1;
  const double threads = std::min(1.0, t.channels / kFullChannels);
  const double moreRows = std::max(0.0, t.state / std::min(kRowBytes, kChannelRowBytes * t.channels) - 1);
  const bool oneRow = t.fast && moreRows == 0;
  const double stream = t.state * (t.perByte + 1 / (threads * kStreamRate));
  switch (algorithm) {
    case seqparScanChain:
      return hops * (t.alpha + kHop) + stream + (t.fast ? 0 : kGeneral / 2);
    case seqparScanOneshot:
      return t.alpha + kFold + hops * (t.map * t.perByte + kPeer) + moreRows * kStep + (oneRow ? 0 : kGeneral);
    case seqparScanTransposed:
    case seqparScanHier: {
      const double shards = oneRow ? t.state / (threads * kStreamRate) : kGeneral + t.state / (threads * kShardRate);
      return 2 * t.alpha + kFold + kShard + hops * ((t.map + t.state) / t.ranks * t.perByte + kPeer) + shards;
    }
    case seqparScanDoubling: {
      const double rounds = t.ranks <= 2 ? 1 : std::ceil(std::log2(t.ranks - 1) + std::log2(4.0 / 3.0));
      return kGeneral + rounds * (t.alpha + kPeer + t.map * t.perByte) + moreRows * (kStep + rounds * t.alpha);
    }
    case seqparScanLasp1:
      return kGeneral + hops * (t.alpha + kStep / 2 + std::min(t.state, kPieceBytes * t.channels) * t.perByte) + stream;
    default:
      return kGeneral + t.alpha + hops * (t.map * t.perByte + 2 * kPeer) + moreRows * 1.5 * kStep;
  }
}

}  // namespace

std::vector<seqparScanEstimate_t> estimateDeviceScan(const ScanProblem& problem, int positions, const DeviceLink& link,
                                                     int channels) {
  Terms t{};
  t.ranks = positions;
  t.channels = channels;
  t.state = static_cast<double>(problem.elements() * sizeOf(problem.wireType));
  const double factors = static_cast<double>(problem.heads) *
                         (problem.op == seqparScanDiag ? static_cast<double>(problem.dk) : 1) * sizeof(float);
  t.map = t.state + factors;
  t.fast = problem.stateType == seqparFloat32 && problem.wireType == seqparFloat32;
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
