#include "exchange/device_strings.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace seqpar {
namespace {

/// Fewer bytes a lane cost more in waiting than they save in copying.
constexpr std::size_t kLeastPart = 4096;

/// The largest of 16, 8, 4, 2, 1 that divides all that is or-ed into `bits`.
std::uint32_t widthOf(std::uint64_t bits) {
  for (const std::uint32_t width : {16U, 8U, 4U, 2U}) {
    if (bits % width == 0) return width;
  }
  return 1;
}

}  // namespace

device::PieceArg makePiece(const Piece& piece, const std::byte* buffer, std::uint64_t begin) {
  device::PieceArg made{};
  // NOLINTNEXTLINE: what is sent is never written
  made.base = const_cast<std::byte*>(buffer) + piece.offset;
  made.begin = begin;
  made.bytes = piece.bytes();
  std::uint64_t bits = begin | reinterpret_cast<std::uint64_t>(made.base);
  // Runs that follow each other without a gap are one.
  std::size_t run = piece.run;
  std::size_t dimension = piece.count.size();
  while (dimension > 0 && (piece.count[dimension - 1] == 1 || piece.stride[dimension - 1] == run)) {
    run *= piece.count[--dimension];
  }
  if (dimension == 0) {
    made.run = 0;
    made.count1 = made.count2 = 1;
    made.width = widthOf(bits | made.bytes);
    return made;
  }
  // What is left of the counts moves to the end, where the fast index is.
  std::array<std::uint64_t, 3> count{1, 1, 1};
  for (std::size_t i = 0; i < dimension; ++i) {
    count[i + 3 - dimension] = piece.count[i];
    made.stride[i + 3 - dimension] = piece.stride[i];
    if (piece.count[i] > 1) bits |= piece.stride[i];
  }
  if (run > std::numeric_limits<std::uint32_t>::max() || made.bytes / run > std::numeric_limits<std::uint32_t>::max()) {
    fail(seqparInvalidUsage, "a piece of ", made.bytes, " bytes in runs of ", run,
         "; expected fewer than 2^32 runs of fewer than 2^32 bytes");
  }
  made.run = static_cast<std::uint32_t>(run);
  made.count1 = static_cast<std::uint32_t>(count[1]);
  made.count2 = static_cast<std::uint32_t>(count[2]);
  made.width = widthOf(bits | run);
  return made;
}

int lanesFor(std::size_t bytes, int lanes) {
  const std::size_t wanted = (bytes + kLeastPart - 1) / kLeastPart;
  return static_cast<int>(std::min(wanted, static_cast<std::size_t>(lanes)));
}

DeviceStrings makeStrings(std::span<const Transfer> transfers, std::span<const std::byte* const> buffers, int rank,
                          int ranks, int lanes, int first) {
  DeviceStrings made;
  std::vector<std::vector<const Piece*>> byRank(static_cast<std::size_t>(ranks));
  for (const auto& transfer : transfers) {
    if (transfer.piece.bytes() > 0) byRank[static_cast<std::size_t>(transfer.peer)].push_back(&transfer.piece);
  }
  for (int peer = 0; peer < ranks; ++peer) {
    const auto& pieces = byRank[static_cast<std::size_t>(peer)];
    if (pieces.empty()) continue;
    device::StringArg string{};
    string.peer = peer;
    string.first = first + static_cast<int>(made.pieces.size());
    string.count = static_cast<int>(pieces.size());
    for (const Piece* piece : pieces) {
      made.pieces.push_back(makePiece(*piece, buffers[static_cast<std::size_t>(piece->buffer)], string.bytes));
      string.bytes += piece->bytes();
    }
    string.lanes = lanesFor(string.bytes, lanes);
    if (peer == rank) {
      made.self = string;
    } else {
      made.others.push_back(string);
    }
  }
  return made;
}

}  // namespace seqpar
