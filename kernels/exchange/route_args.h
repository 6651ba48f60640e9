// What the kernels of an exchange between peers are told, for the host code that fills it in too.
#pragma once

#include "kernels/byte_fifo.h"
#include "kernels/exchange/payload.h"
#include "kernels/peers.h"

namespace seqpar::device {

/// The most regions of a kernel's parameter, which a graph can keep.
constexpr int kMostInlineRegions = 256;

/// Regions travel in the kernel's parameter up to a number, and lie in device memory beyond. A small parameter comes
/// faster, and its regions are read by instructions of their own.
template <int kPayloads, int kRegions>
struct RouteArgs {
  static constexpr int kMostPayloads = kPayloads;
  static constexpr int kMostRegions = kRegions;

  WaitPolicy waitPolicy;
  int sends, receives;                ///< payloads, none of and to this rank itself
  int packetsCtas;                    ///< of packetsKernel: channels; CTAs beyond copy what stays on the rank
  PeerPayload selfSend, selfReceive;  ///< with no regions if there is nothing
  PeerPayload payloads[kPayloads];    ///< those to send, then those to receive
  const RegionArg* far;               ///< all regions, if they are not inline
  RegionArg near[kRegions];
};

/// The CTAs among which the payloads are shared.
template <class Args>
int channelsOf(const Args& args) {
  int channels = 0;
  for (int i = 0; i < args.sends + args.receives; ++i) {
    if (args.payloads[i].channels > channels) channels = args.payloads[i].channels;
  }
  return channels;
}

/// Short lists, the usual ones, get small parameters.
using FewArgs = RouteArgs<14, 16>;
using ManyArgs = RouteArgs<2 * (kMostPeers - 1), kMostInlineRegions>;

/// A sum, of vecs that are whole: every payload that comes is a term, and each is as long as the region.
struct RecvReduceArgs {
  RegionArg region;
  const std::byte* own;  ///< this rank's own term, in one run
  int existing;          ///< what stands in the region is the first term
  int count;
  std::int8_t payload[kMostPeers];  ///< by term: which of those that come; -1: the own
};

}  // namespace seqpar::device
