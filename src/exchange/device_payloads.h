// A route's pieces as kernels want them: sorted by peer, with the buffers' addresses worked in.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/route.h"
#include "exchange/strings.h"

namespace seqpar {

/// The strings of one side of a route.
struct DeviceStrings {
  std::vector<device::StringArg> others;  ///< ascending by `peer`, here a rank; none of them empty
  device::StringArg self{};               ///< what goes from this rank to itself; no pieces if nothing
  std::vector<device::PieceArg> pieces;
};

/// `first` is added to piece numbers. `lanes`: the most CTAs that may share a string.
DeviceStrings makeStrings(std::span<const Transfer> transfers, std::span<const std::byte* const> buffers, int rank,
                          int ranks, int lanes, int first);

/// `peer` of all strings, a rank so far, becomes its place in `ranks`, which ascend and have it.
void numberPeers(DeviceStrings& strings, std::span<const int> ranks);

/// One piece at `begin` of its string.
device::PieceArg makePiece(const Piece& piece, const std::byte* buffer, std::uint64_t begin);

/// Parts a string among up to `lanes` CTAs and chooses how it travels, by its bytes alone: alike at both ends.
void shareAmong(device::StringArg& string, int lanes);

/// Whether it travels in chunks.
bool isLong(std::uint64_t bytes, int lanes);

}  // namespace seqpar
