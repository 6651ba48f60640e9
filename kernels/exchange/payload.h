// Payloads of bytes in strided regions: StridedRegion of exchange/route.h with absolute addresses, for kernels and for
// the host code that fills them in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/byte_fifo_layout.h"

namespace seqpar::device {

/// Division of numbers below 2^31 by a multiplication.
struct Divider {
  std::uint32_t by, multiplier, shift;

  SEQPAR_BOTH std::uint32_t quotient(std::uint32_t number) const {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(number) * multiplier >> shift);
  }
};

/// One region of a payload.
struct RegionArg {
  std::byte* base;          ///< of the first run
  std::uint64_t begin;      ///< offset of the region in its payload
  std::uint64_t bytes;      ///< of the region
  std::uint64_t stride[3];  ///< bytes
  Divider run;              ///< vecs of a run; by 0: the whole region is one run
  Divider count1, count2;
  std::uint16_t width;  ///< divides the offset, all addresses and runs of more than one: 16, 8, 4, 2 or 1
  std::uint8_t shift;   ///< a vec is 1 << shift bytes, which width divides
  bool huge;            ///< 2^31 vecs or more
};

/// Form of a payload's vecs of 16 bytes.
enum class Vec16Kind : std::uint8_t {
  Whole,   ///< each is whole in one region, and aligned
  Words,   ///< the payload is a run of words of 4 bytes
  Narrow,  ///< neither
};

/// All bytes that go to, or arrive from, one peer.
struct PeerPayload {
  std::uint64_t bytes;
  std::uint64_t each;  ///< bytes of a channel, a multiple of 128; the last channels may have fewer
  ByteFifoEnd end;
  int peer;
  int channels;  ///< CTAs that share the payload
  int first;     ///< regions [first, first + count) of the list, in ascending order
  int count;
  std::uint32_t chunk;  ///< bytes of a chunk, a multiple of 128; 0: the payload uses packets
  Vec16Kind vecs;
};

}  // namespace seqpar::device
