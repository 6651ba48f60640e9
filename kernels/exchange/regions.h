// Walking over strings of bytes that lie in pieces.
#pragma once

#include "exchange/strings.h"
#include "pipe.h"

namespace seqpar::device {

/// The part of a string that is a lane's business.
struct Part {
  std::uint64_t begin, end;
};

SEQPAR_LANE std::uint64_t lesser(std::uint64_t a, std::uint64_t b) {
  return a < b ? a : b;
}
SEQPAR_LANE std::uint64_t greater(std::uint64_t a, std::uint64_t b) {
  return a > b ? a : b;
}

SEQPAR_LANE Part partOf(const StringArg& string, int lane) {
  const std::uint64_t begin = lesser(string.bytes, string.each * static_cast<std::uint64_t>(lane));
  return {begin, lesser(string.bytes, begin + string.each)};
}

/// The address of a unit of a piece that is not huge.
SEQPAR_LANE std::byte* addressInRuns(const PieceArg& piece, std::uint32_t unit) {
  const std::uint32_t row = piece.run.quotient(unit);
  const std::uint32_t plane = piece.count2.quotient(row);
  const std::uint32_t i0 = piece.count1.quotient(plane);
  return piece.base + i0 * piece.stride[0] + (plane - i0 * piece.count1.by) * piece.stride[1] +
         (row - plane * piece.count2.by) * piece.stride[2] +
         (static_cast<std::uint64_t>(unit - row * piece.run.by) << piece.shift);
}

/// The address of a byte of any piece, counted from the piece's begin.
SEQPAR_LANE std::byte* addressOf(const PieceArg& piece, std::uint64_t position) {
  if (piece.run.by == 0) return piece.base + position;
  const std::uint64_t unit = position >> piece.shift;
  const std::uint64_t rest = position - (unit << piece.shift);
  if (!piece.huge) return addressInRuns(piece, static_cast<std::uint32_t>(unit)) + rest;
  const std::uint64_t row = unit / piece.run.by;
  const std::uint64_t plane = row / piece.count2.by;
  return piece.base + plane / piece.count1.by * piece.stride[0] + plane % piece.count1.by * piece.stride[1] +
         row % piece.count2.by * piece.stride[2] + (unit % piece.run.by << piece.shift) + rest;
}

/// Addresses of a range's bytes by their offset: in one run; in runs, where offsets are multiples of 16; in any piece.
struct InLine {
  std::byte* base;
  SEQPAR_LANE std::byte* operator()(std::uint64_t offset) const { return base + offset; }
};
struct InRuns {
  const PieceArg& piece;
  std::uint64_t begin;
  SEQPAR_LANE std::byte* operator()(std::uint64_t offset) const {
    return addressInRuns(piece, static_cast<std::uint32_t>((begin + offset) >> 4));
  }
};
struct InPiece {
  const PieceArg* piece;
  std::uint64_t begin;
  SEQPAR_LANE std::byte* operator()(std::uint64_t offset) const { return addressOf(*piece, begin + offset); }
};

/// Copies units, of which `rank` of `threads` does every threads-th, with kInFlight of them on their way at once.
template <typename Value, int kInFlight, typename Index, typename From, typename Into>
SEQPAR_LANE void copyUnits(Index units, int rank, int threads, const From& from, const Into& into) {
  const auto step = static_cast<Index>(threads);
  SEQPAR_ROLLED
  for (auto first = static_cast<Index>(rank); first < units; first += kInFlight * step) {
    Value held[kInFlight];
    SEQPAR_UNROLL
    for (Index i = 0; i < kInFlight; ++i) {
      const std::uint64_t unit = first + i * step;
      if (unit < units) held[i] = *reinterpret_cast<const Value*>(from(unit * sizeof(Value)));
    }
    SEQPAR_UNROLL
    for (Index i = 0; i < kInFlight; ++i) {
      const std::uint64_t unit = first + i * step;
      if (unit < units) *reinterpret_cast<Value*>(into(unit * sizeof(Value))) = held[i];
    }
  }
}

/// Copies `bytes` between two addressings of one range: both give multiples of `width` wherever the offset is one.
template <typename From, typename Into>
SEQPAR_RARE void copySlowly(std::uint32_t width, std::uint64_t bytes, int rank, int threads, From from, Into into) {
  const auto units = [&](auto unit) {
    using Value = decltype(unit);
    copyUnits<Value, 4>(bytes / sizeof(Value), rank, threads, from, into);
    for (auto at = bytes / sizeof(Value) * sizeof(Value) + static_cast<std::uint64_t>(rank); at < bytes;
         at += static_cast<std::uint64_t>(threads)) {
      *into(at) = *from(at);
    }
  };
  switch (width) {
    case 16:
      return units(Unit{});
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

/// A piece whose units are of 16 bytes.
SEQPAR_LANE bool isEasy(const PieceArg& piece) {
  return piece.width == 16 && !piece.huge;
}

/// The first piece of the string that ends behind `position`.
SEQPAR_LANE int pieceAt(const PieceArg* pieces, const StringArg& string, std::uint64_t position) {
  int low = string.first;
  int high = string.first + string.count - 1;
  SEQPAR_ROLLED
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

/// Copies the range of a string, fewer than 2^32 bytes, from its pieces to `linear` (kGather) or back. `range.begin` is
/// a multiple of 16, and `linear` is aligned to 16.
template <bool kGather>
SEQPAR_LANE void copyString(const PieceArg* pieces, const StringArg& string, Part range, std::byte* linear, int rank,
                            int threads) {
  constexpr int kInFlight = 8;
  SEQPAR_ROLLED
  for (int i = string.count == 1 ? string.first : pieceAt(pieces, string, range.begin); i < string.first + string.count;
       ++i) {
    const PieceArg& piece = pieces[i];
    if (piece.begin >= range.end) return;
    const std::uint64_t begin = greater(piece.begin, range.begin);
    const std::uint64_t bytes = lesser(piece.begin + piece.bytes, range.end) - begin;
    const std::uint64_t inside = begin - piece.begin;
    const InLine line{linear + (begin - range.begin)};
    const auto copy = [&](const auto& inPiece) {
      const auto units = static_cast<std::uint32_t>(bytes / 16);
      if constexpr (kGather) {
        copyUnits<Unit, kInFlight>(units, rank, threads, inPiece, line);
      } else {
        copyUnits<Unit, kInFlight>(units, rank, threads, line, inPiece);
      }
    };
    if (!isEasy(piece) || bytes % 16 != 0) {
      const InPiece any{&piece, inside};
      if constexpr (kGather) {
        copySlowly(piece.width, bytes, rank, threads, any, line);
      } else {
        copySlowly(piece.width, bytes, rank, threads, line, any);
      }
    } else if (piece.run.by == 0) {
      copy(InLine{piece.base + inside});
    } else {
      copy(InRuns{piece, inside});
    }
  }
}

/// Calls access(address, width, offset) for all of up to 16 bytes of a string from `position` on, a multiple of 16.
template <typename Access>
SEQPAR_LANE void accessUnit(const PieceArg* pieces, const StringArg& string, std::uint64_t position,
                            std::uint32_t bytes, const Access& access) {
  SEQPAR_ROLLED
  for (std::uint32_t done = 0; done < bytes;) {
    const std::uint64_t at = position + done;
    const PieceArg& piece = pieces[pieceAt(pieces, string, at)];
    const std::uint64_t left = lesser(bytes - done, piece.begin + piece.bytes - at);
    std::uint32_t width = piece.width;
    while (width > left) width /= 2;
    access(addressOf(piece, at - piece.begin), width, done);
    done += width;
  }
}

/// Units that are not whole in one piece, or not aligned.
struct NarrowUnits {
  SEQPAR_RARE static Unit gather(const PieceArg* pieces, const StringArg& string, std::uint64_t position,
                                 std::uint32_t bytes) {
    if (string.units == Units::Words) {
      const auto* const words = reinterpret_cast<const std::uint32_t*>(pieces[string.first].base + position);
      return {words[0], bytes > 4 ? words[1] : 0, bytes > 8 ? words[2] : 0, bytes > 12 ? words[3] : 0};
    }
    std::uint64_t low = 0, high = 0;
    accessUnit(pieces, string, position, bytes, [&](const std::byte* from, std::uint32_t width, std::uint32_t offset) {
      std::uint64_t value = 0;
      switch (width) {
        case 16:
          low = reinterpret_cast<const std::uint64_t*>(from)[0];
          high = reinterpret_cast<const std::uint64_t*>(from)[1];
          return;
        case 8:
          value = *reinterpret_cast<const std::uint64_t*>(from);
          break;
        case 4:
          value = *reinterpret_cast<const std::uint32_t*>(from);
          break;
        case 2:
          value = *reinterpret_cast<const std::uint16_t*>(from);
          break;
        default:
          value = *reinterpret_cast<const std::uint8_t*>(from);
      }
      if (offset < 8) {
        low |= value << (8 * offset);
      } else {
        high |= value << (8 * (offset - 8));
      }
    });
    return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
            static_cast<std::uint32_t>(high >> 32)};
  }

  SEQPAR_RARE static void scatter(const PieceArg* pieces, const StringArg& string, std::uint64_t position,
                                  std::uint32_t bytes, Unit unit) {
    if (string.units == Units::Words) {
      auto* const words = reinterpret_cast<std::uint32_t*>(pieces[string.first].base + position);
      words[0] = unit.x;
      if (bytes > 4) words[1] = unit.y;
      if (bytes > 8) words[2] = unit.z;
      if (bytes > 12) words[3] = unit.w;
      return;
    }
    const std::uint64_t low = unit.x | static_cast<std::uint64_t>(unit.y) << 32;
    const std::uint64_t high = unit.z | static_cast<std::uint64_t>(unit.w) << 32;
    accessUnit(pieces, string, position, bytes, [&](std::byte* into, std::uint32_t width, std::uint32_t offset) {
      const std::uint64_t value = offset < 8 ? low >> (8 * offset) : high >> (8 * (offset - 8));
      switch (width) {
        case 16:
          reinterpret_cast<std::uint64_t*>(into)[0] = low;
          reinterpret_cast<std::uint64_t*>(into)[1] = high;
          return;
        case 8:
          *reinterpret_cast<std::uint64_t*>(into) = value;
          return;
        case 4:
          *reinterpret_cast<std::uint32_t*>(into) = static_cast<std::uint32_t>(value);
          return;
        case 2:
          *reinterpret_cast<std::uint16_t*>(into) = static_cast<std::uint16_t>(value);
          return;
        default:
          *reinterpret_cast<std::uint8_t*>(into) = static_cast<std::uint8_t>(value);
      }
    });
  }
};

/// Where the whole unit of 16 bytes at `position` lies in a string of such.
SEQPAR_LANE std::byte* unitAt(const PieceArg* pieces, const StringArg& string, std::uint64_t position) {
  const PieceArg& piece = pieces[string.count == 1 ? string.first : pieceAt(pieces, string, position)];
  const std::uint64_t inside = position - piece.begin;
  return piece.run.by == 0 ? piece.base + inside : addressInRuns(piece, static_cast<std::uint32_t>(inside >> 4));
}

/// Up to 16 bytes of a string from `position` on.
SEQPAR_LANE Unit gatherUnit(const PieceArg* pieces, const StringArg& string, std::uint64_t position) {
  if (string.units == Units::Whole) return *reinterpret_cast<const Unit*>(unitAt(pieces, string, position));
  return NarrowUnits::gather(pieces, string, position, static_cast<std::uint32_t>(lesser(16, string.bytes - position)));
}
SEQPAR_LANE void scatterUnit(const PieceArg* pieces, const StringArg& string, std::uint64_t position, Unit unit) {
  if (string.units == Units::Whole) {
    *reinterpret_cast<Unit*>(unitAt(pieces, string, position)) = unit;
  } else {
    NarrowUnits::scatter(pieces, string, position, static_cast<std::uint32_t>(lesser(16, string.bytes - position)),
                         unit);
  }
}

struct OwnString {
  /// What a rank sends to itself: every overlap of a piece that is sent with one that is received.
  SEQPAR_RARE static void copy(const PieceArg* pieces, const StringArg& send, const StringArg& receive, int rank,
                               int threads) {
    int out = send.first;
    int in = receive.first;
    SEQPAR_ROLLED
    while (out < send.first + send.count && in < receive.first + receive.count) {
      // In registers: what is written might be these pieces, for all that the compiler knows.
      const PieceArg from = pieces[out];
      const PieceArg into = pieces[in];
      const std::uint64_t begin = greater(from.begin, into.begin);
      const std::uint64_t end = lesser(from.begin + from.bytes, into.begin + into.bytes);
      const std::uint64_t bytes = begin < end ? end - begin : 0;
      const std::uint64_t fromAt = begin - from.begin;
      const std::uint64_t intoAt = begin - into.begin;
      const bool easy = isEasy(from) && isEasy(into) && bytes % 16 == 0;
      if (easy && into.run.by == 0) {
        const auto copy = [&](const auto& source) {
          copyUnits<Unit, 8>(bytes / 16, rank, threads, source, InLine{into.base + intoAt});
        };
        if (from.run.by == 0) {
          copy(InLine{from.base + fromAt});
        } else {
          copy(InRuns{from, fromAt});
        }
      } else if (easy && from.run.by == 0) {
        copyUnits<Unit, 8>(bytes / 16, rank, threads, InLine{from.base + fromAt}, InRuns{into, intoAt});
      } else {
        copySlowly(from.width < into.width ? from.width : into.width, bytes, rank, threads,
                   InPiece{pieces + out, fromAt}, InPiece{pieces + in, intoAt});
      }
      if (from.begin + from.bytes == end) ++out;
      if (into.begin + into.bytes == end) ++in;
    }
  }
};

}  // namespace seqpar::device
