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

/// Where each string lies for NCCL: in place if it is one run, else in memory of its own.
struct Staged {
  std::vector<std::byte*> memory;
  std::vector<device::StringArg> copied;
  std::vector<std::byte*> copies;  ///< memory of `copied`
};

Staged stage(const DeviceStrings& strings, DeviceArena& arena, int lanes) {
  Staged made;
  for (const auto& string : strings.others) {
    const auto& first = strings.pieces[static_cast<std::size_t>(string.first)];
    if (string.count == 1 && first.run.by == 0) {
      made.memory.push_back(first.base);
      continue;
    }
    made.memory.push_back(arena.take(string.bytes));
    made.copied.push_back(string);
    shareAmong(made.copied.back(), lanes);
    made.copies.push_back(made.memory.back());
  }
  return made;
}

void exchangeByNccl(DeviceGroup& group, const DeviceStrings& sends, const DeviceStrings& receives,
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
  if (!out.copied.empty()) launchStrings(true, out.copied, out.copies, sends.pieces, stream);
  group.nccl()->exchange(toSend, toReceive, stream);
  if (!in.copied.empty()) launchStrings(false, in.copied, in.copies, receives.pieces, stream);
}

#else

void exchangeByNccl(DeviceGroup&, const DeviceStrings&, const DeviceStrings&, DeviceStream) {}  // all ranks are peers

#endif

}  // namespace

void exchangeOnDevice(DeviceGroup& group, const Route& route, std::span<const std::byte* const> sendBuffers,
                      std::span<std::byte* const> receiveBuffers, DeviceStream stream) {
  const int lanes = group.peers().pipeLanes;
  const std::vector<const std::byte*> receiving(receiveBuffers.begin(), receiveBuffers.end());
  auto sends = makeStrings(route.sends, sendBuffers, group.rank(), group.size(), lanes, 0);
  const bool direct = group.direct();
  const int first = direct ? static_cast<int>(sends.pieces.size()) : 0;
  auto receives = makeStrings(route.receives, receiving, group.rank(), group.size(), lanes, first);
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
  receives.self.first += static_cast<int>(sends.pieces.size());
  if (sends.self.count > 0) launchRoute(group.peers(), sends, receives, stream);
}

}  // namespace seqpar
