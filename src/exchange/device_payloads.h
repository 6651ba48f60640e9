// A route's regions as kernels want them: sorted by peer, with the buffers' addresses worked in.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/route.h"
#include "kernels/exchange/payload.h"

namespace seqpar {

/// The payloads of one side of a route.
struct DevicePayloads {
  std::vector<device::PeerPayload> others;  ///< ascending by `peer`, here a rank; none of them empty
  device::PeerPayload self{};               ///< what goes from this rank to itself; no regions if nothing
  std::vector<device::RegionArg> regions;
};

/// `first` is added to region numbers. `channels`: the most CTAs that may share a payload.
DevicePayloads makePayloads(std::span<const Transfer> transfers, std::span<const std::byte* const> buffers, int rank,
                            int ranks, int channels, int first);

/// `peer` of all payloads, a rank so far, becomes its place in `ranks`, which ascend and have it.
void numberPeers(DevicePayloads& payloads, std::span<const int> ranks);

/// One region at `begin` of its payload.
device::RegionArg makeRegion(const StridedRegion& region, const std::byte* buffer, std::uint64_t begin);

/// Parts a payload among up to `channels` CTAs and chooses how it travels, by its bytes alone: alike at both ends.
void shareAmong(device::PeerPayload& payload, int channels);

/// Whether it travels in chunks.
bool isLong(std::uint64_t bytes, int channels);

}  // namespace seqpar
