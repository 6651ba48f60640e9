// Walking over strings of bytes in kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exchange/strings.h"

namespace seqpar::device {

/// The part of a string that is a lane's business.
struct Part {
  std::uint64_t begin, end;
};

/// Bytes that one lane of `lanes` has of `bytes`; parts begin at multiples of 128.
inline __device__ std::uint64_t laneBytes(std::uint64_t bytes, int lanes) {
  const std::uint64_t each = (bytes + lanes - 1) / lanes;
  return (each + 127) / 128 * 128;
}

inline __device__ Part partOf(const StringArg& string, int lane) {
  if (lane >= string.lanes) return {0, 0};
  const std::uint64_t each = laneBytes(string.bytes, string.lanes);
  const std::uint64_t begin = min(string.bytes, each * lane);
  return {begin, min(string.bytes, begin + each)};
}

/// The address of a byte of the piece, counted from the piece's begin.
inline __device__ std::byte* addressOf(const PieceArg& piece, std::uint64_t position) {
  if (piece.run == 0) return piece.base + position;
  std::uint64_t row, inRun;
  if (piece.bytes >> 32 == 0) {  // 64-bit division costs several times more
    const auto small = static_cast<std::uint32_t>(position);
    row = small / piece.run;
    inRun = small % piece.run;
  } else {
    row = position / piece.run;
    inRun = position % piece.run;
  }
  const auto rows = static_cast<std::uint32_t>(row);
  const std::uint32_t i2 = rows % piece.count2;
  const std::uint32_t rest = rows / piece.count2;
  return piece.base + rest / piece.count1 * piece.stride[0] + rest % piece.count1 * piece.stride[1] +
         i2 * piece.stride[2] + inRun;
}

template <typename Unit, typename From, typename Into>
__device__ void copyUnits(std::uint64_t units, int rank, int threads, From from, Into into) {
  constexpr int kInFlight = 4;
  std::uint64_t unit = rank;
  for (; unit + (kInFlight - 1) * threads < units; unit += kInFlight * threads) {
    Unit held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) held[i] = *from(unit + i * threads);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) *into(unit + i * threads) = held[i];
  }
  for (; unit < units; unit += threads) *into(unit) = *from(unit);
}

/// Copies `bytes`, a multiple of `width`, between two addressings of one range: from(offset) and into(offset) give
/// addresses that are multiples of `width` wherever offset is.
template <typename From, typename Into>
__device__ void copyWide(std::uint32_t width, std::uint64_t bytes, int rank, int threads, From from, Into into) {
  const auto units = [&](auto unit) {
    using Unit = decltype(unit);
    copyUnits<Unit>(
        bytes / sizeof(Unit), rank, threads,
        [&](std::uint64_t i) { return reinterpret_cast<const Unit*>(from(i * sizeof(Unit))); },
        [&](std::uint64_t i) { return reinterpret_cast<Unit*>(into(i * sizeof(Unit))); });
  };
  switch (width) {
    case 16:
      return units(uint4{});
    case 8:
      return units(std::uint64_t{});
    case 4:
      return units(std::uint32_t{});
    case 2:
      return units(std::uint16_t{});
    default:
      return units(std::uint8_t{});
  }
}

/// The first piece of the string that ends behind `position`.
inline __device__ int pieceAt(const PieceArg* pieces, const StringArg& string, std::uint64_t position) {
  int low = string.first;
  int high = string.first + string.count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (pieces[middle].begin + pieces[middle].bytes <= position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Copies the range of a string from its pieces to `linear` (kGather) or back. `range.begin` is a multiple of 16, and
/// `linear` is aligned to 16.
template <bool kGather, typename Linear>
__device__ void copyString(const PieceArg* pieces, const StringArg& string, Part range, Linear* linear, int rank,
                           int threads) {
  for (int i = pieceAt(pieces, string, range.begin); i < string.first + string.count; ++i) {
    const PieceArg& piece = pieces[i];
    if (piece.begin >= range.end) return;
    const std::uint64_t begin = max(piece.begin, range.begin);
    const std::uint64_t end = min(piece.begin + piece.bytes, range.end);
    const auto inPiece = [&](std::uint64_t offset) { return addressOf(piece, begin - piece.begin + offset); };
    const auto inLine = [&](std::uint64_t offset) { return linear + (begin - range.begin) + offset; };
    if constexpr (kGather) {
      copyWide(piece.width, end - begin, rank, threads, inPiece, inLine);
    } else {
      copyWide(piece.width, end - begin, rank, threads, inLine, inPiece);
    }
  }
}

}  // namespace seqpar::device
