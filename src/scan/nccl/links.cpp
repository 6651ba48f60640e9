// Measures a step over NCCL including the host's part.
#include <algorithm>
#include <chrono>
#include <map>

#include "base/error.h"
#include "device/cuda.h"
#include "device/nccl_comm.h"
#include "scan/nccl/backend.h"

namespace seqpar {
namespace {

constexpr std::size_t kSmall = 256;
constexpr std::size_t kLarge = std::size_t{4} << 20;
constexpr int kRepeats = 8;

/// The next and the previous rank in `ring`, which contains this rank.
struct Neighbors {
  int next, previous;
};

Neighbors neighbors(const std::vector<int>& ring, int rank) {
  const auto count = ring.size();
  const auto place = static_cast<std::size_t>(std::find(ring.begin(), ring.end(), rank) - ring.begin());
  return {ring[(place + 1) % count], ring[(place + count - 1) % count]};
}

/// Seconds of one exchange of `bytes` with the ring neighbors: the best of several, after one warm-up.
double timeStep(NcclComm& nccl, const Neighbors& ring, std::byte* memory, std::size_t bytes, cudaStream_t stream) {
  using Clock = std::chrono::steady_clock;
  const NcclSend send{ring.next, memory, bytes};
  const NcclReceive receive{ring.previous, memory + kLarge, bytes};
  double best = 0;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const auto start = Clock::now();
    nccl.exchange({&send, 1}, {&receive, 1}, stream);
    nccl.wait(stream);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (repeat > 0) best = repeat == 1 ? seconds : std::min(best, seconds);
  }
  return best;
}

NcclLink measure(NcclComm& nccl, const std::vector<int>& ring) {
  const DeviceMemory memory = allocateDevice(2 * kLarge, "measuring links");
  const StreamHandle stream = makeStream();
  const Neighbors places = neighbors(ring, nccl.rank());
  const double small = timeStep(nccl, places, memory.get(), kSmall, stream.get());
  const double large = timeStep(nccl, places, memory.get(), kLarge, stream.get());
  return {small, std::max(0.0, large - small) / static_cast<double>(kLarge - kSmall)};
}

NcclLink slowest(const NcclLink& a, const NcclLink& b) {
  return {std::max(a.alpha, b.alpha), std::max(a.secondsPerByte, b.secondsPerByte)};
}

}  // namespace

NcclLinks measureNcclLinks(NcclComm& nccl, Allgather& control, std::span<const int> nodes) {
  const CurrentDevice current(nccl.device());
  std::map<int, std::vector<int>> members;
  for (int rank = 0; rank < nccl.size(); ++rank) members[nodes[static_cast<std::size_t>(rank)]].push_back(rank);
  const std::vector<int>& mine = members[nodes[static_cast<std::size_t>(nccl.rank())]];

  NcclLinks own;
  if (mine.size() > 1) own.node = measure(nccl, mine);
  if (members.size() > 1) {
    std::vector<int> everybody;
    // Neighbors on different nodes if there are several: ranks alternate between the nodes.
    for (std::size_t i = 0; everybody.size() < nodes.size(); ++i) {
      for (const auto& [node, ranks] : members) {
        if (i < ranks.size()) everybody.push_back(ranks[i]);
      }
    }
    own.network = measure(nccl, everybody);
  }
  std::vector<NcclLinks> all(static_cast<std::size_t>(control.size()));
  control.gatherValues(own, std::span(all));
  NcclLinks result;
  for (const NcclLinks& each : all) {
    result.node = slowest(result.node, each.node);
    result.network = slowest(result.network, each.network);
  }
  if (members.size() == 1) result.network = result.node;
  return result;
}

}  // namespace seqpar
