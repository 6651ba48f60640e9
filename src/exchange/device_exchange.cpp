#include "exchange/device_exchange.h"

#include <algorithm>

#include "device/arena.h"
#include "exchange/device_launch.h"
#ifdef SEQPAR_NCCL
#include "device/nccl_comm.h"
#endif

namespace seqpar {
namespace {

#ifdef SEQPAR_NCCL

/// Where each payload lies for NCCL: in place if it is one run, else in memory of its own.
struct Staged {
  std::vector<std::byte*> memory;
  std::vector<device::PeerPayload> copied;
  std::vector<std::byte*> copies;  ///< memory of `copied`
};

Staged stage(const DevicePayloads& payloads, DeviceArena& arena, int channels) {
  Staged made;
  for (const auto& payload : payloads.others) {
    const auto& first = payloads.regions[static_cast<std::size_t>(payload.first)];
    if (payload.count == 1 && first.run.by == 0) {
      made.memory.push_back(first.base);
      continue;
    }
    made.memory.push_back(arena.take(payload.bytes));
    made.copied.push_back(payload);
    shareAmong(made.copied.back(), channels);
    made.copies.push_back(made.memory.back());
  }
  return made;
}

void exchangeByNccl(DeviceGroup& group, const DevicePayloads& sends, const DevicePayloads& receives,
                    DeviceStream stream) {
  DeviceArena& arena = group.arena();
  const Staged out = stage(sends, arena, group.processors());
  const Staged in = stage(receives, arena, group.processors());
  std::vector<NcclSend> toSend;
  std::vector<NcclReceive> toReceive;
  for (std::size_t i = 0; i < sends.others.size(); ++i) {
    toSend.push_back({sends.others[i].peer, out.memory[i], sends.others[i].bytes});
  }
  for (std::size_t i = 0; i < receives.others.size(); ++i) {
    toReceive.push_back({receives.others[i].peer, in.memory[i], receives.others[i].bytes});
  }
  if (!out.copied.empty()) launchPayloads(true, out.copied, out.copies, sends.regions, stream);
  group.nccl()->exchange(toSend, toReceive, stream);
  if (!in.copied.empty()) launchPayloads(false, in.copied, in.copies, receives.regions, stream);
}

#else

void exchangeByNccl(DeviceGroup&, const DevicePayloads&, const DevicePayloads&, DeviceStream) {}  // all ranks are peers

#endif

}  // namespace

void exchangeOnDevice(DeviceGroup& group, const Route& route, std::span<const std::byte* const> sendBuffers,
                      std::span<std::byte* const> receiveBuffers, DeviceStream stream) {
  const int channels = group.peers().byteFifoChannels;
  const std::vector<const std::byte*> receiving(receiveBuffers.begin(), receiveBuffers.end());
  auto sends = makePayloads(route.sends, sendBuffers, group.rank(), group.size(), channels, 0);
  const bool direct = group.direct();
  const int first = direct ? static_cast<int>(sends.regions.size()) : 0;
  auto receives = makePayloads(route.receives, receiving, group.rank(), group.size(), channels, first);
  if (direct) {
    numberPeers(sends, group.peerRanks());
    numberPeers(receives, group.peerRanks());
    launchRoute(group.peers(), sends, receives, stream);
    return;
  }
  exchangeByNccl(group, sends, receives, stream);
  // What is left is this rank's own.
  sends.others.clear();
  receives.others.clear();
  receives.self.first += static_cast<int>(sends.regions.size());
  if (sends.self.count > 0) launchRoute(group.peers(), sends, receives, stream);
}

}  // namespace seqpar
