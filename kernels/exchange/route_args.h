// Arguments of the kernels of an exchange between peers, also for the host code that fills them in.
#pragma once

#include "kernels/byte_fifo.h"
#include "kernels/exchange/payload.h"
#include "kernels/peers.h"

namespace seqpar::device {

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
