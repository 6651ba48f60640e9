#include "exchange/device_lse_merge.h"

#include <algorithm>

#include "base/convert.h"
#include "device/cuda.h"
#include "exchange/device_reduction.h"
#include "kernels/exchange/lse_merge_launch.h"

namespace seqpar {
namespace {

/// The most CTAs: each has an SM of an H100 or H200.
constexpr std::size_t kMostChannels = 128;

/// Merges of at most this many packets are bound by their launch: one packet for each thread of all CTAs.
constexpr std::size_t kBriefPackets = kMostChannels * MergeTask::kBriefThreads;

/// Up to this many ranks, kernels of MergeTask::kMostThreads threads exist: more peers need more registers.
constexpr std::size_t kWideRanks = 4;

/// One exchange of everything sends (ranks - 1) x bytes, two send 2 (ranks - 1) / ranks x bytes but take a hop more:
/// as much time as this many bytes, measured on 4 H200, where both ways take equally long at about 1.2 MiB. Two ranks
/// never gain.
constexpr std::size_t kHopBytes = std::size_t{1792} << 10;

bool twoHops(std::size_t bytes, std::size_t ranks) {
  return ranks > 2 && bytes * (ranks - 1) * (ranks - 2) > kHopBytes * ranks;
}

MergeTask taskOf(const DeviceGroup& group, const LseMerge& given) {
  const auto ranks = static_cast<std::size_t>(group.size());
  MergeTask task;
  task.out = given.out;
  task.lse = given.lse;
  task.outMerged = given.outMerged;
  task.lseMerged = given.lseMerged;
  task.rowCount = given.rowCount;
  task.type = given.type;
  task.rows = static_cast<std::uint32_t>(given.rows);
  task.heads = static_cast<std::uint32_t>(given.heads);
  task.elements = static_cast<std::uint32_t>(given.rowBytes / sizeOf(given.type));
  const std::size_t results = given.rows * given.heads;
  task.kind = given.byHeads                              ? MergeKind::Heads
              : twoHops(results * given.rowBytes, ranks) ? MergeKind::Parts
                                                         : MergeKind::All;
  task.complete(group.size());
  const std::size_t mostResults = task.results(task.rows, group.size(), 0);
  const std::size_t packets = mostResults * task.packets;
  task.brief = !group.shared() && packets <= kBriefPackets;
  task.threads = task.brief ? MergeTask::kBriefThreads : MergeTask::kThreads;
  // A packet per thread, if possible.
  const int mostThreads = ranks <= kWideRanks ? MergeTask::kMostThreads : MergeTask::kThreads;
  while (!task.brief && task.threads < mostThreads &&
         packets > kMostChannels * static_cast<std::size_t>(task.threads)) {
    task.threads *= 2;
  }
  const auto threads = static_cast<std::size_t>(task.threads);
  const std::size_t wanted = (packets + threads - 1) / threads;
  const auto limit = std::min(kMostChannels, static_cast<std::size_t>(group.peers().channels));
  // All CTAs of ranks that share a GPU must be resident at once.
  const std::size_t resident = group.shared() ? static_cast<std::size_t>(group.smCount()) / ranks : limit;
  const auto channels =
      std::clamp<std::size_t>(std::min(wanted, mostResults), 1, std::max<std::size_t>(1, std::min(limit, resident)));
  task.setChannels(static_cast<int>(channels), group.size());
  return task;
}

/// Gathers the merged parts of all ranks, in place. `bytes`: of an element of the scatter's tokens.
void gather(const DeviceExchanges& by, DeviceGroup& group, const LseReduction& scattered, std::size_t bytes,
            const void* part, void* whole, DeviceStream stream) {
  const auto* const from = static_cast<const std::byte*>(part);
  auto* const into = static_cast<std::byte*>(whole);
  by.move(group, gatherAfter(scattered, bytes), std::span(&from, 1), std::span(&into, 1), stream);
}

}  // namespace

bool mergeLseByKernel(DeviceGroup& group, const LseMerge& given, DeviceStream stream) {
  if (!MergeTask::fits(given.rows, given.heads, given.rowBytes)) return false;
  checkCuda(launchLseMerge(group.peers(), taskOf(group, given), static_cast<cudaStream_t>(stream)), "lseMergeKernel");
  return true;
}

void mergeLseOnDevice(const DeviceExchanges& by, DeviceGroup& group, const LseMerge& given, DeviceStream stream) {
  if (given.rows == 0) return;
  if (by.mergeInKernel(group, given, stream)) return;
  const LseReduction scattered = scatterOf(given, group.size(), group.rank());
  reduceLseOnDevice(by, group, scattered, stream);
  if (given.byHeads || group.size() == 1) return;
  gather(by, group, scattered, given.rowBytes, scattered.outShard, given.outMerged, stream);
  gather(by, group, scattered, sizeof(float), scattered.lseShard, given.lseMerged, stream);
}

}  // namespace seqpar
