// Strings of bytes that lie in pieces: exchange/route.h's Piece with its buffer's address worked in, for kernels and
// for the host code that fills them in.
#pragma once

#include <cstddef>
#include <cstdint>

namespace seqpar::device {

/// One piece of a string.
struct PieceArg {
  std::byte* base;          ///< of the first run
  std::uint64_t begin;      ///< where the piece begins in its string
  std::uint64_t bytes;      ///< of the piece
  std::uint64_t stride[3];  ///< bytes
  std::uint32_t run;        ///< bytes of a run; 0: the whole piece is one
  std::uint32_t count1, count2;
  std::uint32_t width;  ///< divides begin, all addresses and runs: 16, 8, 4, 2 or 1
};

/// All that goes to, or comes from, one peer.
struct StringArg {
  std::uint64_t bytes;
  int peer;
  int lanes;  ///< CTAs that share the string, each a contiguous part
  int first;  ///< pieces [first, first + count) of the list, ascending by `begin`
  int count;
};

}  // namespace seqpar::device
