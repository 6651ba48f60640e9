// Payloads of bytes in strided regions, StridedRegion of exchange/route.h with absolute addresses, and the arguments of
// an exchange between peers; for kernels and for the host code that fills them in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/byte_fifo.h"
#include "kernels/byte_fifo_layout.h"
#include "kernels/peers.h"

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

/// The most regions in a kernel parameter, which a graph can keep.
constexpr int kMostInlineRegions = 256;

/// Up to kRegions regions are part of the kernel's parameter; more are in device memory. A small parameter arrives
/// earlier, and its regions are read by constant-memory instructions.
template <int kPayloads, int kRegions>
struct RouteArgs {
  static constexpr int kMostPayloads = kPayloads;
  static constexpr int kMostRegions = kRegions;

  WaitPolicy waitPolicy;
  int sends, receives;                ///< payloads, excluding this rank's to itself
  int packetsCtas;                    ///< of packetsKernel: channels; further CTAs copy the rank's data to itself
  PeerPayload selfSend, selfReceive;  ///< no regions if empty
  PeerPayload payloads[kPayloads];    ///< sent payloads, then received payloads
  const RegionArg* externalRegions;   ///< all regions, if they are not inline
  RegionArg inlineRegions[kRegions];
};

/// The number of CTAs that share the payloads.
template <class Args>
int channelsOf(const Args& args) {
  int channels = 0;
  for (int i = 0; i < args.sends + args.receives; ++i) {
    if (args.payloads[i].channels > channels) channels = args.payloads[i].channels;
  }
  return channels;
}

/// Short lists, the usual case, use small parameters.
using FewArgs = RouteArgs<14, 16>;
using ManyArgs = RouteArgs<2 * (kMostPeers - 1), kMostInlineRegions>;

/// A sum of whole vecs: every incoming payload is a term, and each is as long as the region.
struct RecvReduceArgs {
  RegionArg region;
  const std::byte* own;  ///< this rank's own term, in one run
  int existing;          ///< the region's content is the first term
  int count;
  std::int8_t payload[kMostPeers];  ///< by term: index of the incoming payload; -1: own
};

}  // namespace seqpar::device
