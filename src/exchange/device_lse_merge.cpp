#include "exchange/device_lse_merge.h"

#include "exchange/device_exchange.h"
#include "exchange/device_reduction.h"

namespace seqpar {
namespace {

/// Gathers the merged parts of all ranks, in place. `bytes`: of an element of the scatter's tokens.
void gather(DeviceGroup& group, const LseReduction& scattered, std::size_t bytes, const void* part, void* whole,
            DeviceStream stream) {
  const auto* const from = static_cast<const std::byte*>(part);
  auto* const into = static_cast<std::byte*>(whole);
  exchangeOnDevice(group, gatherAfter(scattered, bytes), std::span(&from, 1), std::span(&into, 1), stream);
}

}  // namespace

void mergeLseOnDevice(DeviceGroup& group, const LseMerge& given, DeviceStream stream) {
  if (given.rows == 0) return;
  const LseReduction scattered = scatterOf(given, group.size(), group.rank());
  reduceLseOnDevice(group, scattered, stream);
  if (given.byHeads || group.size() == 1) return;
  gather(group, scattered, given.rowBytes, scattered.outShard, given.outMerged, stream);
  gather(group, scattered, sizeof(float), scattered.lseShard, given.lseMerged, stream);
}

}  // namespace seqpar
