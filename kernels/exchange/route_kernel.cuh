// An exchange between peers in one kernel. Half of each CTA sends, half receives. Lane l of a string is CTA l's.
#pragma once

#include "exchange/pieces.cuh"
#include "pipe.cuh"

namespace seqpar::device {

constexpr int kRouteThreads = 512;

/// Pieces travel in the kernel's parameter up to a number, and lie in device memory beyond.
template <int kInline>
struct RouteArgs {
  PeerView view;  ///< peers of the strings are peer numbers
  StringArg sends[kMostPeers], receives[kMostPeers];
  int sendCount = 0, receiveCount = 0;  ///< strings, none of and to this rank itself
  StringArg selfSend{}, selfReceive{};
  const PieceArg* far = nullptr;  ///< all pieces, if they are not inline
  PieceArg near[kInline];

  __device__ const PieceArg* pieces() const { return far != nullptr ? far : near; }
};

/// The strings of a half's threads: thread i of the group waits and tells for string i.
template <typename Args>
__device__ void sendAll(const Args& args, PipeEnds ends, std::uint64_t* counts) {
  const ThreadGroup group = ends.group();
  const int lane = blockIdx.x;
  const bool mine = group.rank < args.sendCount;
  const Part part = mine ? partOf(args.sends[group.rank], lane) : Part{0, 0};
  const int peer = mine ? args.sends[group.rank].peer : 0;
  if (mine) counts[group.rank] = *ends.sent(peer);
  group.sync();

  std::uint64_t longest = 0;
  for (int i = 0; i < args.sendCount; ++i) {
    const Part other = partOf(args.sends[i], lane);
    longest = max(longest, other.end - other.begin);
  }
  for (std::uint64_t offset = 0; offset < longest; offset += PipeLayout::kChunk) {
    const bool more = part.begin + offset < part.end;
    if (more && !ends.awaitRoom(peer, counts[group.rank])) ends.markDead();
    group.sync();
    if (!ends.alive()) return;
    for (int i = 0; i < args.sendCount; ++i) {
      // Not all ranks to the same peer at once.
      const int string = (i + args.view.self) % args.sendCount;
      const Part all = partOf(args.sends[string], lane);
      if (all.begin + offset >= all.end) continue;
      const Part range{all.begin + offset, min(all.end, all.begin + offset + PipeLayout::kChunk)};
      copyString<true>(args.pieces(), args.sends[string], range, ends.room(args.sends[string].peer, counts[string]),
                       group.rank, group.threads);
    }
    group.sync();
    if (more) ends.announce(peer, ++counts[group.rank]);
    group.sync();
  }
  if (mine) *ends.sent(peer) = counts[group.rank];
}

template <typename Args>
__device__ void receiveAll(const Args& args, PipeEnds ends, std::uint64_t* counts) {
  const ThreadGroup group = ends.group();
  const int lane = blockIdx.x;
  const bool mine = group.rank < args.receiveCount;
  const Part part = mine ? partOf(args.receives[group.rank], lane) : Part{0, 0};
  const int peer = mine ? args.receives[group.rank].peer : 0;
  if (mine) counts[group.rank] = *ends.received(peer);
  group.sync();

  std::uint64_t longest = 0;
  for (int i = 0; i < args.receiveCount; ++i) {
    const Part other = partOf(args.receives[i], lane);
    longest = max(longest, other.end - other.begin);
  }
  for (std::uint64_t offset = 0; offset < longest; offset += PipeLayout::kChunk) {
    const bool more = part.begin + offset < part.end;
    if (more && !ends.awaitChunk(peer, counts[group.rank])) ends.markDead();
    group.sync();
    if (!ends.alive()) return;
    for (int string = 0; string < args.receiveCount; ++string) {
      const Part all = partOf(args.receives[string], lane);
      if (all.begin + offset >= all.end) continue;
      const Part range{all.begin + offset, min(all.end, all.begin + offset + PipeLayout::kChunk)};
      copyString<false>(args.pieces(), args.receives[string], range,
                        ends.chunk(args.receives[string].peer, counts[string]), group.rank, group.threads);
    }
    group.sync();
    if (more) ends.giveBack(peer, ++counts[group.rank]);
    group.sync();
  }
  if (mine) *ends.received(peer) = counts[group.rank];
}

/// What this rank sends to itself: every overlap of a piece that is sent with one that is received.
template <typename Args>
__device__ void copyToSelf(const Args& args) {
  const PieceArg* pieces = args.pieces();
  const int rank = blockIdx.x * blockDim.x + threadIdx.x;
  const int threads = gridDim.x * blockDim.x;
  int out = args.selfSend.first;
  int in = args.selfReceive.first;
  while (out < args.selfSend.first + args.selfSend.count && in < args.selfReceive.first + args.selfReceive.count) {
    const PieceArg& from = pieces[out];
    const PieceArg& into = pieces[in];
    const std::uint64_t begin = max(from.begin, into.begin);
    const std::uint64_t end = min(from.begin + from.bytes, into.begin + into.bytes);
    if (begin < end) {
      copyWide(
          min(from.width, into.width), end - begin, rank, threads,
          [&](std::uint64_t offset) { return addressOf(from, begin - from.begin + offset); },
          [&](std::uint64_t offset) { return addressOf(into, begin - into.begin + offset); });
    }
    if (from.begin + from.bytes == end) ++out;
    if (into.begin + into.bytes == end) ++in;
  }
}

template <int kInline>
__global__ void __launch_bounds__(kRouteThreads) routeKernel(const __grid_constant__ RouteArgs<kInline> args) {
  constexpr int kHalf = kRouteThreads / 2;
  __shared__ std::uint64_t counts[2][kMostPeers];
  __shared__ int dead[2];
  const bool sends = threadIdx.x < kHalf;
  if (threadIdx.x < 2) dead[threadIdx.x] = 0;
  __syncthreads();
  const ThreadGroup group{sends ? 1 : 2, static_cast<int>(threadIdx.x) % kHalf, kHalf};
  const PipeEnds ends(args.view, group, blockIdx.x, &dead[sends ? 0 : 1]);
  if (args.selfSend.count > 0) copyToSelf(args);
  if (sends) {
    sendAll(args, ends, counts[0]);
  } else {
    receiveAll(args, ends, counts[1]);
  }
}

}  // namespace seqpar::device
