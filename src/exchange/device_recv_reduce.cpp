#include "exchange/device_recv_reduce.h"

#include "device/cuda.h"
#include "exchange/device_launch.h"
#include "kernels/exchange/launch.h"

namespace seqpar {
namespace {

bool isAligned(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

device::RecvReduceArgs termsOf(const device::FewArgs& route, const RecvReduce& sum) {
  device::RecvReduceArgs args{};
  args.region = sum.region;
  args.own = sum.own;
  args.existing = sum.existing ? 1 : 0;
  args.count = static_cast<int>(sum.from.size());
  const auto received = std::span(route.payloads).subspan(static_cast<std::size_t>(route.sends));
  for (std::size_t term = 0; term < sum.from.size(); ++term) {
    args.payload[term] = -1;
    for (int i = 0; i < route.receives; ++i) {
      if (received[static_cast<std::size_t>(i)].peer == sum.from[term])
        args.payload[term] = static_cast<std::int8_t>(i);
    }
  }
  return args;
}

}  // namespace

std::optional<RecvReduce> planRecvReduce(DeviceGroup& group, std::span<const Transfer> sends,
                                         std::span<const std::byte* const> sendBuffers, const Sum& sum,
                                         std::byte* buffer, const std::byte* own) {
  const std::uint64_t bytes = sum.region.bytes();
  const int channels = group.peers().byteFifoChannels;
  if (!group.direct() || !isLong(bytes, channels)) return {};
  RecvReduce made;
  made.existing = sum.existing;
  made.own = own;
  made.region = makeRegion(sum.region, buffer, 0);
  if (made.region.width != 16 || made.region.huge || bytes % 16 != 0 || !isAligned(own)) return {};

  const auto& ranks = group.peerRanks();
  std::vector<Transfer> coming;
  for (const int rank : sum.from) {
    if (rank == group.rank()) {
      if (own == nullptr) return {};
      made.from.push_back(-1);
      continue;
    }
    made.from.push_back(static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin()));
    coming.push_back({rank, StridedRegion{.run = bytes}});
  }
  if (coming.empty()) return {};
  made.sends = makePayloads(sends, sendBuffers, group.rank(), group.size(), channels, 0);
  const std::byte* const nowhere = nullptr;
  made.receives = makePayloads(coming, std::span(&nowhere, 1), group.rank(), group.size(), channels, 0);
  made.receives.regions.clear();
  if (made.sends.self.count > 0 || !areFew(made.sends, made.receives)) return {};
  numberPeers(made.sends, ranks);
  numberPeers(made.receives, ranks);
  return made;
}

void launchRecvReduce(const PeerView& view, const RecvReduce& sum, seqparDataType_t type, DeviceStream stream) {
  const auto route = makeRouteArgs<device::FewArgs>(view, sum.sends, sum.receives);
  std::copy(sum.sends.regions.begin(), sum.sends.regions.end(), route->inlineRegions);
  const auto terms = termsOf(*route, sum);
  checkCuda(device::launchRecvReduce(*route, terms, type, static_cast<cudaStream_t>(stream)), "recvReduceKernel");
}

}  // namespace seqpar
