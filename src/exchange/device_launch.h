// Launches of the exchange kernels, and the parameters of those that send and receive payloads.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "device/group.h"
#include "exchange/device_payloads.h"
#include "kernels/exchange/route_args.h"

namespace seqpar {

/// One exchange between peers: the payloads' `peer` are peer numbers. The region numbers of `receives` continue after
/// those of `sends`.
void launchRoute(const PeerView& view, const DevicePayloads& sends, const DevicePayloads& receives,
                 DeviceStream stream);

/// Gathers payloads into `memory[i]`, or scatters them back; payloads[i] indexes `regions`.
void launchPayloads(bool gather, std::span<const device::PeerPayload> payloads, std::span<std::byte* const> memory,
                    std::span<const device::RegionArg> regions, DeviceStream stream);

/// Whether the fixed-size lists can hold all of them.
inline bool areFew(const DevicePayloads& sends, const DevicePayloads& receives) {
  return sends.regions.size() + receives.regions.size() <= device::FewArgs::kMostRegions &&
         sends.others.size() + receives.others.size() <= device::FewArgs::kMostPayloads;
}

/// The payloads of one side with their byte FIFOs, in serving order: at any time, different ranks serve different
/// peers.
inline std::vector<device::PeerPayload> inOrder(const PeerView& view, const std::vector<device::PeerPayload>& payloads,
                                                bool upwards) {
  std::vector<device::PeerPayload> ordered = payloads;
  const auto distance = [&](const device::PeerPayload& payload) {
    return (upwards ? payload.peer - view.self + view.size : view.self - payload.peer + view.size) % view.size;
  };
  std::sort(ordered.begin(), ordered.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  for (auto& payload : ordered) {
    payload.end = {view.byteFifos[view.self] + ByteFifoLayout::end(payload.peer, 0, view.byteFifoChannels),
                   view.byteFifos[payload.peer] + ByteFifoLayout::end(view.self, 0, view.byteFifoChannels),
                   reinterpret_cast<ByteFifoState*>(view.byteFifoState) +
                       ByteFifoLayout::number(payload.peer, 0, view.byteFifoChannels)};
  }
  return ordered;
}

/// Kernel arguments without the regions. On the heap: they are kilobytes, and the caller's stack size is unknown.
template <typename Args>
std::unique_ptr<Args> makeRouteArgs(const PeerView& view, const DevicePayloads& sends, const DevicePayloads& receives) {
  const auto out = inOrder(view, sends.others, true);
  const auto in = inOrder(view, receives.others, false);
  auto args = std::make_unique<Args>();
  args->waitPolicy = view.waits;
  std::copy(in.begin(), in.end(), std::copy(out.begin(), out.end(), args->payloads));
  args->sends = static_cast<int>(out.size());
  args->receives = static_cast<int>(in.size());
  args->selfSend = sends.self;
  args->selfReceive = receives.self;
  return args;
}

}  // namespace seqpar
