#include "exchange/device_strings.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace seqpar {
namespace {

/// Longer strings go in chunks: they need a fence and a second journey, but a quarter less of the wires.
constexpr std::uint64_t kMostByLines = 2 << 20;
/// Fewer bytes a lane cost more in waiting than they save in copying.
constexpr std::uint64_t kLeastByLines = std::uint64_t{2} * PipeLayout::kBlockBytes;
constexpr std::uint64_t kLeastByChunks = 8192;

std::uint64_t roundUp(std::uint64_t bytes, std::uint64_t to) {
  return (bytes + to - 1) / to * to;
}

/// Bytes of a lane if lanes shall have at least `least`.
std::uint64_t partFor(std::uint64_t bytes, std::uint64_t least, int lanes) {
  const auto used = std::clamp<std::uint64_t>((bytes + least - 1) / least, 1, static_cast<std::uint64_t>(lanes));
  return roundUp((bytes + used - 1) / used, 128);
}

device::Divider dividerBy(std::uint32_t number) {
  std::uint32_t log = 0;
  while (std::uint64_t{1} << log < number) ++log;
  const std::uint32_t shift = 31 + log;
  return {number, static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + number - 1) / number), shift};
}

/// The largest of 16, 8, 4, 2, 1 that divides all that is or-ed into `bits`.
std::uint16_t widthOf(std::uint64_t bits) {
  for (const std::uint16_t width : {16, 8, 4, 2}) {
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
    made.count1 = made.count2 = dividerBy(1);
    made.width = widthOf(bits);
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
  made.width = widthOf(bits | run);
  while (1U << made.shift < made.width) ++made.shift;
  made.run = dividerBy(static_cast<std::uint32_t>(run / made.width));
  made.count1 = dividerBy(static_cast<std::uint32_t>(count[1]));
  made.count2 = dividerBy(static_cast<std::uint32_t>(count[2]));
  made.huge = made.bytes / made.width >> 31 != 0;
  return made;
}

void shareAmong(device::StringArg& string, int lanes) {
  string.each = partFor(string.bytes, kLeastByLines, lanes);
  string.chunk = 0;
  if (string.bytes > kMostByLines || string.each > std::uint64_t{PipeLayout::kMostBlocks} * PipeLayout::kBlockBytes) {
    string.each = partFor(string.bytes, kLeastByChunks, lanes);
    const auto chunk = roundUp((string.each + PipeLayout::kTracks - 1) / PipeLayout::kTracks, 512);
    string.chunk = static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk, PipeLayout::kChunk));
  }
  string.lanes = static_cast<int>((string.bytes + string.each - 1) / string.each);
}

bool isLong(std::uint64_t bytes, int lanes) {
  device::StringArg string{};
  string.bytes = bytes;
  if (bytes > 0) shareAmong(string, lanes);
  return string.chunk != 0;
}

void numberPeers(DeviceStrings& strings, std::span<const int> ranks) {
  for (auto& string : strings.others) {
    string.peer = static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), string.peer) - ranks.begin());
  }
}

namespace {

device::Units unitsOf(std::span<const device::PieceArg> pieces) {
  const auto whole = [](const device::PieceArg& piece) { return piece.width == 16 && piece.bytes % 16 == 0; };
  if (std::all_of(pieces.begin(), pieces.end(), whole)) return device::Units::Whole;
  const auto& first = pieces.front();
  const bool words = pieces.size() == 1 && first.run.by == 0 && first.width % 4 == 0 && first.bytes % 4 == 0;
  return words ? device::Units::Words : device::Units::Narrow;
}

}  // namespace

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
    string.units = unitsOf(std::span(made.pieces).last(pieces.size()));
    shareAmong(string, lanes);
    if (peer == rank) {
      made.self = string;
    } else {
      made.others.push_back(string);
    }
  }
  return made;
}

}  // namespace seqpar
