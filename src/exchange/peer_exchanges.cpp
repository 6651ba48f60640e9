// Exchanges between GPUs that map each other's memory: payloads in byte FIFOs (kernels/exchange), in one kernel.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "device/cuda.h"
#include "exchange/device_exchanges.h"
#include "exchange/device_lse_merge.h"
#include "exchange/device_payloads.h"
#include "exchange/device_regions.h"
#include "kernels/exchange/launch.h"

namespace seqpar {
namespace {

using device::RegionArg;

/// Kernel arguments without the regions. On the heap: they are kilobytes, and the caller's stack size is unknown.
template <typename Args>
std::unique_ptr<Args> makeRouteArgs(const PeerView& view, const DevicePayloads& sends, const DevicePayloads& receives) {
  auto args = std::make_unique<Args>();
  args->waitPolicy = view.waits;
  std::copy(receives.others.begin(), receives.others.end(),
            std::copy(sends.others.begin(), sends.others.end(), args->payloads));
  args->sends = static_cast<int>(sends.others.size());
  args->receives = static_cast<int>(receives.others.size());
  args->selfSend = sends.self;
  args->selfReceive = receives.self;
  return args;
}

template <typename Args>
void launchWith(const PeerView& view, const DevicePayloads& sends, const DevicePayloads& receives,
                std::span<const RegionArg> regions, cudaStream_t stream) {
  const ExternalRegions externalRegions(regions, stream);
  const auto args = makeRouteArgs<Args>(view, sends, receives);
  fillRegions(*args, externalRegions, regions);
  checkCuda(device::launchRoute(*args, view.byteFifoChannels, stream), "routeKernel");
}

/// Whether the fixed-size lists can hold all of them.
bool areFew(const DevicePayloads& sends, const DevicePayloads& receives) {
  return sends.regions.size() + receives.regions.size() <= device::FewArgs::kMostRegions &&
         sends.others.size() + receives.others.size() <= device::FewArgs::kMostPayloads;
}

/// A sum, and this rank's sends.
struct RecvReduce {
  DevicePayloads sends, receives;
  RegionArg region{};
  bool existing = false;
  std::vector<int> from;           ///< peer numbers, -1 for this rank, in the order of the terms
  const std::byte* own = nullptr;  ///< this rank's term
};

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

std::optional<RecvReduce> planRecvReduce(DeviceGroup& group, const DeviceExchanges::SingleSum& single,
                                         std::span<const std::byte* const> sendBuffers, std::byte* buffer) {
  const auto& [sends, sum, own, ctas] = single;
  const std::uint64_t bytes = sum.region.bytes();
  const int channels = channelsOf(group.peers(), ctas);
  if (!isLong(bytes, channels)) return {};
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
  orderForPeers(made.sends, ranks, group.peers(), Order::Upwards);
  orderForPeers(made.receives, ranks, group.peers(), Order::Downwards);
  return made;
}

class PeerExchanges final : public DeviceExchanges {
 public:
  const char* engine() const override { return "kernels"; }
  bool mapsAll() const override { return true; }
  bool joinsRegions() const override { return true; }

  void move(DeviceGroup& group, const Route& route, std::span<const std::byte* const> sends,
            std::span<std::byte* const> receives, DeviceStream stream) const override {
    const std::vector<const std::byte*> receiving(receives.begin(), receives.end());
    const int channels = channelsOf(group.peers(), route.ctas);
    const auto out = makePayloads(route.sends, sends, group.rank(), group.size(), channels, 0);
    const int first = static_cast<int>(out.regions.size());
    launchBetweenPeers(group, out, makePayloads(route.receives, receiving, group.rank(), group.size(), channels, first),
                       stream);
  }

  void moveFlow(DeviceGroup& group, const Flow& flow, DeviceStream stream) const override {
    const int channels = group.peers().byteFifoChannels;
    const auto out = makePayloads(flow.to, flow.out, group.rank(), channels, 0);
    const int first = static_cast<int>(out.regions.size());
    launchBetweenPeers(group, out, makePayloads(flow.from, flow.in, group.rank(), channels, first), stream);
  }

  bool recvReduce(DeviceGroup& group, const SingleSum& sum, std::span<const std::byte* const> sendBuffers,
                  std::byte* buffer, seqparDataType_t type, DeviceStream stream) const override {
    const auto planned = planRecvReduce(group, sum, sendBuffers, buffer);
    if (!planned) return false;
    const auto route = makeRouteArgs<device::FewArgs>(group.peers(), planned->sends, planned->receives);
    std::copy(planned->sends.regions.begin(), planned->sends.regions.end(), route->inlineRegions);
    const auto terms = termsOf(*route, *planned);
    checkCuda(device::launchRecvReduce(*route, terms, type, static_cast<cudaStream_t>(stream)), "recvReduceKernel");
    return true;
  }

  bool mergeInKernel(DeviceGroup& group, const LseMerge& merge, DeviceStream stream) const override {
    return mergeLseByKernel(group, merge, stream);
  }
};

}  // namespace

void launchBetweenPeers(DeviceGroup& group, DevicePayloads sends, DevicePayloads receives, DeviceStream stream) {
  const PeerView& view = group.peers();
  orderForPeers(sends, group.peerRanks(), view, Order::Upwards);
  orderForPeers(receives, group.peerRanks(), view, Order::Downwards);
  std::vector<RegionArg> regions = sends.regions;
  regions.insert(regions.end(), receives.regions.begin(), receives.regions.end());
  const auto on = static_cast<cudaStream_t>(stream);
  if (areFew(sends, receives)) return launchWith<device::FewArgs>(view, sends, receives, regions, on);
  launchWith<device::ManyArgs>(view, sends, receives, regions, on);
}

const DeviceExchanges& peerExchanges() {
  static const PeerExchanges backend;
  return backend;
}

}  // namespace seqpar
