// An exchange between peers in one kernel.
//
// Work      CTA l transfers channel l of every payload. packetsKernel: further CTAs copy the rank's data to itself
// Roles     packetsKernel: all warps send packets, then receive. routeKernel: the first kWarpFifos warps send, the
//           others receive, so no order of sends and receives can deadlock; warp i of either half has warp FIFO i
//           (chunks.h)
// Tiles     packets of 16 bytes (ll_packets.h), then chunks of byte FIFOs
// Smem      ChunkCounts per warp
// Barriers  named, RouteBarrier: of the warps that send; of the warps that receive. None between the two
// Overlap   none between kernels
#pragma once

#include "kernels/byte_fifo_cuda.cuh"
#include "kernels/exchange/chunks.h"
#include "kernels/exchange/ll_packets.h"
#include "kernels/exchange/payload.h"

namespace seqpar::device {

constexpr int kWarpFifos = static_cast<int>(ByteFifoLayout::kWarpFifos);
constexpr int kPacketsWarps = 16;
/// One warp to send and one to receive each warp FIFO.
constexpr int kRouteWarps = 2 * kWarpFifos;

/// Named barriers; __syncthreads() has 0.
enum RouteBarrier {
  kSenders = 1,    ///< of the warps that send; packetsKernel: of all warps
  kReceivers = 2,  ///< of the warps that receive
};

/// Copies the rank's data to itself, by the CTAs starting at number `first`.
template <class Args>
__device__ void copyOwn(const Args& args, const RegionArg* regions, int first) {
  const int cta = static_cast<int>(blockIdx.x) - first;
  OwnPayload::copy(regions, args.selfSend, args.selfReceive,
                   cta * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x),
                   (static_cast<int>(gridDim.x) - first) * static_cast<int>(blockDim.x));
}

/// All payloads use packets: every warp sends, then receives.
template <class Args>
__global__ void __launch_bounds__(kPacketsWarps * 32) packetsKernel(const __grid_constant__ Args args) {
  const RegionArg* const regions = args.inlineRegions;
  const PeerPayload* const sends = args.payloads;
  const PeerPayload* const receives = args.payloads + args.sends;
  const int channel = static_cast<int>(blockIdx.x);
  if (channel >= args.packetsCtas) return copyOwn(args, regions, args.packetsCtas);
  const WarpsGroup group(kSenders, 0, static_cast<int>(blockDim.x / 32));
  bool ok = sendPackets<ByteFifoMemory>(args.waitPolicy, regions, sends, args.sends, channel, group);
  // Overlaps with the packets in flight.
  if (args.selfSend.count > 0 && static_cast<int>(gridDim.x) == args.packetsCtas) copyOwn(args, regions, 0);
  const PacketSends<WarpsGroup> sent(sends, args.sends, channel, group);
  const PacketReceives<WarpsGroup> received(receives, args.receives, channel, group);
  ok = ok && receivePackets<ByteFifoMemory>(args.waitPolicy, regions, receives, args.receives, channel, group);
  if (group.any(!ok)) return;
  sent.finish(sends, args.sends, channel, group);
  received.finish<ByteFifoMemory>(receives, args.receives, channel, group);
}

template <class Args>
__device__ void sendRoute(const Args& args, const RegionArg* regions, int warp, ChunkCounts& counts) {
  const PeerPayload* const sends = args.payloads;
  const int channel = static_cast<int>(blockIdx.x);
  const WarpsGroup group(kSenders, 0, kWarpFifos);
  const PacketSends<WarpsGroup> sent(sends, args.sends, channel, group);
  const bool ok = sendPackets<ByteFifoMemory>(args.waitPolicy, regions, sends, args.sends, channel, group);
  if (group.any(!ok)) return;
  sent.finish(sends, args.sends, channel, group);
  if (!sendChunks<ByteFifoMemory, CudaWarpGroup>(args.waitPolicy, regions, sends, args.sends, channel, warp, counts))
    return;
  if (args.selfSend.count == 0) return;
  OwnPayload::copy(regions, args.selfSend, args.selfReceive, channel * group.threads() + group.thread(),
                   static_cast<int>(gridDim.x) * group.threads());
}

template <class Args>
__device__ void receiveRoute(const Args& args, const RegionArg* regions, int warp, ChunkCounts& counts) {
  const PeerPayload* const receives = args.payloads + args.sends;
  const int channel = static_cast<int>(blockIdx.x);
  const WarpsGroup group(kReceivers, kWarpFifos, kWarpFifos);
  const PacketReceives<WarpsGroup> received(receives, args.receives, channel, group);
  const bool ok = receivePackets<ByteFifoMemory>(args.waitPolicy, regions, receives, args.receives, channel, group);
  if (group.any(!ok)) return;
  received.finish<ByteFifoMemory>(receives, args.receives, channel, group);
  receiveChunks<ByteFifoMemory, CudaWarpGroup>(args.waitPolicy, regions, receives, args.receives, channel, warp,
                                               counts);
}

/// Half of the warps send and half receive, so no order of sends and receives can deadlock.
template <class Args, bool kExternal>
__global__ void __launch_bounds__(kRouteWarps * 32) routeKernel(const __grid_constant__ Args args) {
  __shared__ ChunkCounts counts[kRouteWarps];
  const RegionArg* const regions = kExternal ? args.externalRegions : args.inlineRegions;
  const int warp = warpNumber();
  if (warp < kWarpFifos) {
    sendRoute(args, regions, warp, counts[warp]);
  } else {
    receiveRoute(args, regions, warp - kWarpFifos, counts[warp]);
  }
}

}  // namespace seqpar::device
