// An exchange between peers in one kernel. Lane l of a string is CTA l's.
#pragma once

#include "exchange/chunks.h"
#include "exchange/lines.h"
#include "pipe_cuda.h"

namespace seqpar::device {

constexpr int kRouteWarps = 2 * PipeLayout::kTracks;

/// Pieces travel in the kernel's parameter up to a number, and lie in device memory beyond. A small parameter comes
/// faster, and its pieces are read by instructions of their own.
template <int kStrings, int kPieces>
struct RouteArgs {
  static constexpr int kMostStrings = kStrings;
  static constexpr int kMostPieces = kPieces;

  Patience patience;
  int sends, receives;              ///< strings, none of and to this rank itself
  StringArg selfSend, selfReceive;  ///< with no pieces if there is nothing
  StringArg strings[kStrings];      ///< those to send, then those to receive
  const PieceArg* far;              ///< all pieces, if they are not inline
  PieceArg near[kPieces];
};

/// All strings go in lines: every warp sends, and then receives.
template <class Args>
__global__ void __launch_bounds__(kRouteWarps * 32) linesKernel(const __grid_constant__ Args args) {
  const PieceArg* const pieces = args.near;
  const StringArg* const sends = args.strings;
  const StringArg* const receives = args.strings + args.sends;
  const int lane = static_cast<int>(blockIdx.x);
  const WarpsGroup group(1, 0, static_cast<int>(blockDim.x / 32));
  const LineSends<WarpsGroup> sent(sends, args.sends, lane, group);
  const LineReceives<WarpsGroup> received(receives, args.receives, lane, group);
  bool ok = sendLines<PipeMemory>(args.patience, pieces, sends, args.sends, lane, group);
  // While it is on its way.
  if (args.selfSend.count > 0) {
    OwnString::copy(pieces, args.selfSend, args.selfReceive, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x),
                    static_cast<int>(gridDim.x * blockDim.x));
  }
  ok = ok && receiveLines<PipeMemory>(args.patience, pieces, receives, args.receives, lane, group);
  if (group.any(!ok)) return;
  sent.finish(sends, args.sends, lane, group);
  received.finish<PipeMemory>(receives, args.receives, lane, group);
}

/// Half of the warps send and half receive, so that no order of sends and receives can lock.
template <class Args, bool kFar>
__global__ void __launch_bounds__(kRouteWarps * 32) routeKernel(const __grid_constant__ Args args) {
  constexpr int kHalf = kRouteWarps / 2;
  __shared__ ChunkCounts counts[kRouteWarps];
  const PieceArg* const pieces = kFar ? args.far : args.near;
  const int lane = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp < kHalf) {
    const StringArg* const sends = args.strings;
    const WarpsGroup group(1, 0, kHalf);
    const LineSends<WarpsGroup> sent(sends, args.sends, lane, group);
    const bool ok = sendLines<PipeMemory>(args.patience, pieces, sends, args.sends, lane, group);
    if (group.any(!ok)) return;
    sent.finish(sends, args.sends, lane, group);
    if (!sendChunks<PipeMemory, CudaWarp>(args.patience, pieces, sends, args.sends, lane, warp, counts[warp])) return;
    if (args.selfSend.count == 0) return;
    OwnString::copy(pieces, args.selfSend, args.selfReceive, lane * kHalf * 32 + static_cast<int>(threadIdx.x),
                    static_cast<int>(gridDim.x) * kHalf * 32);
  } else {
    const StringArg* const receives = args.strings + args.sends;
    const WarpsGroup group(2, kHalf, kHalf);
    const LineReceives<WarpsGroup> received(receives, args.receives, lane, group);
    const bool ok = receiveLines<PipeMemory>(args.patience, pieces, receives, args.receives, lane, group);
    if (group.any(!ok)) return;
    received.finish<PipeMemory>(receives, args.receives, lane, group);
    receiveChunks<PipeMemory, CudaWarp>(args.patience, pieces, receives, args.receives, lane, warp - kHalf,
                                        counts[warp]);
  }
}

}  // namespace seqpar::device
