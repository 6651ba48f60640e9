// Payloads between ranks without access to each other's memory, by ncclSend and ncclRecv.
#include "device/arena.h"
#include "device/nccl_comm.h"
#include "exchange/device_exchange.h"
#include "exchange/device_launch.h"

namespace seqpar {
namespace {

/// Addresses of the payloads for NCCL: in place if a payload is one run, otherwise a staging buffer.
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

}  // namespace

void exchangeByNccl(DeviceGroup& group, const DevicePayloads& sends, const DevicePayloads& receives,
                    DeviceStream stream) {
  DeviceArena& arena = group.arena();
  const Staged out = stage(sends, arena, group.smCount());
  const Staged in = stage(receives, arena, group.smCount());
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

}  // namespace seqpar
