// Strings of bytes that lie in pieces: exchange/route.h's Piece with its buffer's address worked in, for kernels and
// for the host code that fills them in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pipe_layout.h"

namespace seqpar::device {

/// Division of numbers below 2^31 by a multiplication.
struct Divider {
  std::uint32_t by, multiplier, shift;

  SEQPAR_BOTH std::uint32_t quotient(std::uint32_t number) const {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(number) * multiplier >> shift);
  }
};

/// One piece of a string.
struct PieceArg {
  std::byte* base;          ///< of the first run
  std::uint64_t begin;      ///< where the piece begins in its string
  std::uint64_t bytes;      ///< of the piece
  std::uint64_t stride[3];  ///< bytes
  Divider run;              ///< units of a run; by 0: the whole piece is one
  Divider count1, count2;
  std::uint16_t width;  ///< divides begin, all addresses and runs of more than one: 16, 8, 4, 2 or 1
  std::uint8_t shift;   ///< a unit is 1 << shift bytes, which width divides
  bool huge;            ///< 2^31 units or more
};

/// What a string's units of 16 bytes are like.
enum class Units : std::uint8_t {
  Whole,   ///< each is whole in one piece, and aligned
  Words,   ///< the string is a run of words of 4 bytes
  Narrow,  ///< neither
};

/// All that goes to, or comes from, one peer.
struct StringArg {
  std::uint64_t bytes;
  std::uint64_t each;  ///< bytes of a lane, a multiple of 128; the last lanes may have fewer
  PipeEnd end;
  int peer;
  int lanes;  ///< CTAs that share the string
  int first;  ///< pieces [first, first + count) of the list, ascending by `begin`
  int count;
  std::uint32_t chunk;  ///< bytes of a chunk, a multiple of 128; 0: the string goes in lines
  Units units;
};

}  // namespace seqpar::device
