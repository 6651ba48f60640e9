// An exchange between peers in one kernel. Lane l of a string is CTA l's.
#pragma once

#include "exchange/chunks.h"
#include "exchange/lines.h"
#include "pipe_cuda.h"

namespace seqpar::device {

constexpr int kTracks = static_cast<int>(PipeLayout::kTracks);
constexpr int kLinesWarps = 16;
/// A warp each to send and to receive a track.
constexpr int kRouteWarps = 2 * kTracks;

/// Pieces travel in the kernel's parameter up to a number, and lie in device memory beyond. A small parameter comes
/// faster, and its pieces are read by instructions of their own.
template <int kStrings, int kPieces>
struct RouteArgs {
  static constexpr int kMostStrings = kStrings;
  static constexpr int kMostPieces = kPieces;

  Patience patience;
  int sends, receives;              ///< strings, none of and to this rank itself
  int linesCtas;                    ///< of linesKernel: lanes; CTAs beyond copy what stays on the rank
  StringArg selfSend, selfReceive;  ///< with no pieces if there is nothing
  StringArg strings[kStrings];      ///< those to send, then those to receive
  const PieceArg* far;              ///< all pieces, if they are not inline
  PieceArg near[kPieces];
};

/// What the rank sends to itself, by CTAs from number `first` on.
template <class Args>
__device__ void copyOwn(const Args& args, const PieceArg* pieces, int first) {
  const int cta = static_cast<int>(blockIdx.x) - first;
  OwnString::copy(pieces, args.selfSend, args.selfReceive,
                  cta * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x),
                  (static_cast<int>(gridDim.x) - first) * static_cast<int>(blockDim.x));
}

/// All strings go in lines: every warp sends, and then receives.
template <class Args>
__global__ void __launch_bounds__(kLinesWarps * 32) linesKernel(const __grid_constant__ Args args) {
  const PieceArg* const pieces = args.near;
  const StringArg* const sends = args.strings;
  const StringArg* const receives = args.strings + args.sends;
  const int lane = static_cast<int>(blockIdx.x);
  if (lane >= args.linesCtas) return copyOwn(args, pieces, args.linesCtas);
  const WarpsGroup group(1, 0, static_cast<int>(blockDim.x / 32));
  bool ok = sendLines<PipeMemory>(args.patience, pieces, sends, args.sends, lane, group);
  // While it is on its way.
  if (args.selfSend.count > 0 && static_cast<int>(gridDim.x) == args.linesCtas) copyOwn(args, pieces, 0);
  const LineSends<WarpsGroup> sent(sends, args.sends, lane, group);
  const LineReceives<WarpsGroup> received(receives, args.receives, lane, group);
  ok = ok && receiveLines<PipeMemory>(args.patience, pieces, receives, args.receives, lane, group);
  if (group.any(!ok)) return;
  sent.finish(sends, args.sends, lane, group);
  received.finish<PipeMemory>(receives, args.receives, lane, group);
}

template <class Args>
__device__ void sendRoute(const Args& args, const PieceArg* pieces, int warp, ChunkCounts& counts) {
  const StringArg* const sends = args.strings;
  const int lane = static_cast<int>(blockIdx.x);
  const WarpsGroup group(1, 0, kTracks);
  const LineSends<WarpsGroup> sent(sends, args.sends, lane, group);
  const bool ok = sendLines<PipeMemory>(args.patience, pieces, sends, args.sends, lane, group);
  if (group.any(!ok)) return;
  sent.finish(sends, args.sends, lane, group);
  if (!sendChunks<PipeMemory, CudaWarpGroup>(args.patience, pieces, sends, args.sends, lane, warp, counts)) return;
  if (args.selfSend.count == 0) return;
  OwnString::copy(pieces, args.selfSend, args.selfReceive, lane * group.threads() + group.thread(),
                  static_cast<int>(gridDim.x) * group.threads());
}

template <class Args>
__device__ void receiveRoute(const Args& args, const PieceArg* pieces, int warp, ChunkCounts& counts) {
  const StringArg* const receives = args.strings + args.sends;
  const int lane = static_cast<int>(blockIdx.x);
  const WarpsGroup group(2, kTracks, kTracks);
  const LineReceives<WarpsGroup> received(receives, args.receives, lane, group);
  const bool ok = receiveLines<PipeMemory>(args.patience, pieces, receives, args.receives, lane, group);
  if (group.any(!ok)) return;
  received.finish<PipeMemory>(receives, args.receives, lane, group);
  receiveChunks<PipeMemory, CudaWarpGroup>(args.patience, pieces, receives, args.receives, lane, warp, counts);
}

/// Half of the warps send and half receive, so that no order of sends and receives can lock.
template <class Args, bool kFar>
__global__ void __launch_bounds__(kRouteWarps * 32) routeKernel(const __grid_constant__ Args args) {
  __shared__ ChunkCounts counts[kRouteWarps];
  const PieceArg* const pieces = kFar ? args.far : args.near;
  const int warp = warpNumber();
  if (warp < kTracks) {
    sendRoute(args, pieces, warp, counts[warp]);
  } else {
    receiveRoute(args, pieces, warp - kTracks, counts[warp]);
  }
}

}  // namespace seqpar::device
