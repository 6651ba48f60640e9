#include "exchange/device_exchange.h"

#include "base/error.h"
#include "exchange/device_launch.h"

namespace seqpar {

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
  if constexpr (SEQPAR_HAS_NCCL) {
    exchangeByNccl(group, sends, receives, stream);
  } else {
    fail(seqparInternalError, "an exchange by NCCL in a build without it");
  }
  // Only this rank's payload to itself remains.
  sends.others.clear();
  receives.others.clear();
  receives.self.first += static_cast<int>(sends.regions.size());
  if (sends.self.count > 0) launchRoute(group.peers(), sends, receives, stream);
}

}  // namespace seqpar
