// A route's regions for kernels: sorted by peer, with the buffers' addresses applied.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

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

/// Replaces `peer` of all payloads, so far a rank, by the rank's index in `ranks` (ascending).
void numberPeers(DevicePayloads& payloads, std::span<const int> ranks);

/// One region, at the given offset of its payload.
device::RegionArg makeRegion(const StridedRegion& region, const std::byte* buffer, std::uint64_t begin);

/// Splits a payload among up to `channels` CTAs and chooses packets or chunks, from its size only: both ends agree.
void shareAmong(device::PeerPayload& payload, int channels);

/// Whether a payload of this size is sent in chunks.
bool isLong(std::uint64_t bytes, int channels);

}  // namespace seqpar
