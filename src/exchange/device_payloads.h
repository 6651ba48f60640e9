// A route's regions for kernels: sorted by peer, with the buffers' addresses applied.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/group.h"
#include "exchange/route.h"
#include "kernels/exchange/payload.h"

namespace seqpar {

/// The payloads of one side of a route.
struct DevicePayloads {
  std::vector<device::PeerPayload> others;  ///< ascending by `peer`, here a rank; no empty payloads
  device::PeerPayload self{};               ///< from this rank to itself; no regions if empty
  std::vector<device::RegionArg> regions;
};

/// `first` is added to region numbers. `channels`: the maximum number of CTAs that share a payload.
DevicePayloads makePayloads(std::span<const Transfer> transfers, std::span<const std::byte* const> buffers, int rank,
                            int ranks, int channels, int first);

/// The same for the tensors to or from one rank; none for SEQPAR_NO_PEER.
DevicePayloads makePayloads(int peer, std::span<const std::span<const std::byte>> tensors, int rank, int channels,
                            int first);
DevicePayloads makePayloads(int peer, std::span<const std::span<std::byte>> tensors, int rank, int channels, int first);

enum class Order { Upwards, Downwards };

/// Replaces `peer` of all payloads, so far a rank, by the rank's index in `ranks` (ascending), adds the byte FIFOs, and
/// sorts the payloads: at any time, different ranks serve different peers, since all send upwards and receive
/// downwards.
void orderForPeers(DevicePayloads& payloads, std::span<const int> ranks, const PeerView& view, Order order);

/// One region, at the given offset of its payload.
device::RegionArg makeRegion(const StridedRegion& region, const std::byte* buffer, std::uint64_t begin);

/// The maximum number of CTAs that share a payload of a route with these `ctas`.
int channelsOf(const PeerView& view, int ctas);

/// Splits a payload among up to `channels` CTAs and chooses packets or chunks, from its size only: both ends agree.
void shareAmong(device::PeerPayload& payload, int channels);

/// Whether a payload of this size is sent in chunks.
bool isLong(std::uint64_t bytes, int channels);

/// Enqueues one exchange between peers; only in builds with CUDA. The region numbers of `receives` continue after those
/// of `sends`.
void launchBetweenPeers(DeviceGroup& group, DevicePayloads sends, DevicePayloads receives, DeviceStream stream);

}  // namespace seqpar
