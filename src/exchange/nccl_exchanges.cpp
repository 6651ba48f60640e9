// Exchanges between ranks without access to each other's memory, by ncclSend and ncclRecv.
#include <algorithm>
#include <memory>
#include <vector>

#include "device/arena.h"
#include "device/cuda.h"
#include "device/nccl_comm.h"
#include "exchange/device_exchanges.h"
#include "exchange/device_payloads.h"
#include "exchange/device_regions.h"
#include "kernels/exchange/launch.h"

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

/// Gathers payloads into `memory[i]`, or scatters them back; payloads[i] indexes `regions`.
void copyPayloads(bool gather, std::span<const device::PeerPayload> payloads, std::span<std::byte* const> memory,
                  std::span<const device::RegionArg> regions, DeviceStream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const ExternalRegions externalRegions(regions, on);
  const auto args = std::make_unique<device::PayloadArgs>();
  fillRegions(*args, externalRegions, regions);
  constexpr std::size_t kMost = device::PayloadArgs::kMostCopies;
  for (std::size_t first = 0; first < payloads.size(); first += kMost) {
    const auto part = payloads.subspan(first, std::min(payloads.size() - first, kMost));
    for (std::size_t i = 0; i < part.size(); ++i) args->copies[i] = {part[i], memory[first + i]};
    args->count = static_cast<int>(part.size());
    checkCuda(device::launchPayloads(gather, *args, on), "payloadKernel");
  }
}

/// The payloads to and from other ranks.
void exchangeOthers(DeviceGroup& group, const DevicePayloads& sends, const DevicePayloads& receives,
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
  if (!out.copied.empty()) copyPayloads(true, out.copied, out.copies, sends.regions, stream);
  group.nccl()->exchange(toSend, toReceive, stream);
  if (!in.copied.empty()) copyPayloads(false, in.copied, in.copies, receives.regions, stream);
}

/// Whether NCCL's all-gather is faster. It takes one launch for small shards, and its rings send a large one to another
/// host once, not to each rank there. Shards between the two arrive sooner as messages to all ranks at once.
bool isGather(DeviceGroup& group, const Route& route) {
  constexpr std::size_t kSmall = 4 << 10;
  constexpr std::size_t kLarge = 64 << 10;
  if (group.size() == 1 || route.gatherers != group.size()) return false;
  const std::size_t bytes = route.sends[0].region.bytes();
  return (bytes <= kSmall || bytes >= kLarge) && group.nccl()->gathersNatively();
}

class NcclExchanges final : public DeviceExchanges {
 public:
  const char* engine() const override { return "NCCL"; }
  bool mapsAll() const override { return false; }

  void move(DeviceGroup& group, const Route& route, std::span<const std::byte* const> sends,
            std::span<std::byte* const> receives, DeviceStream stream) const override {
    if (isGather(group, route)) {
      group.nccl()->allGather(sends[0], receives[0], route.sends[0].region.bytes(), stream);
      return;
    }
    const std::vector<const std::byte*> receiving(receives.begin(), receives.end());
    const int channels = group.peers().byteFifoChannels;
    run(group, makePayloads(route.sends, sends, group.rank(), group.size(), channels, 0),
        makePayloads(route.receives, receiving, group.rank(), group.size(), channels, 0), stream);
  }

  void moveFlow(DeviceGroup& group, const Flow& flow, DeviceStream stream) const override {
    const int channels = group.peers().byteFifoChannels;
    run(group, makePayloads(flow.to, flow.out, group.rank(), channels, 0),
        makePayloads(flow.from, flow.in, group.rank(), channels, 0), stream);
  }

 private:
  static void run(DeviceGroup& group, DevicePayloads sends, DevicePayloads receives, DeviceStream stream) {
    exchangeOthers(group, sends, receives, stream);
    // Only this rank's payload to itself remains.
    if (sends.self.count == 0) return;
    sends.others.clear();
    receives.others.clear();
    receives.self.first += static_cast<int>(sends.regions.size());
    launchBetweenPeers(group, sends, receives, stream);
  }
};

}  // namespace

const DeviceExchanges& ncclExchanges() {
  static const NcclExchanges backend;
  return backend;
}

}  // namespace seqpar
