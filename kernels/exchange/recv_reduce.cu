// An exchange that adds all incoming payloads into one region, directly out of the receiver's byte FIFOs.
//
// Work      CTA l transfers channel l of every payload
// Roles     the first kWarpFifos warps send; warp i of the others adds the chunks of warp FIFO i of all peers
// Tiles     four accesses of 16 bytes per lane
// Smem      ChunkCounts per warp; addresses of the chunks of each peer per receiving warp
// Barriers  as in route_kernel.cuh
// Overlap   none between kernels
#include "kernels/exchange/launch.h"
#include "kernels/exchange/route_kernel.cuh"
#include "kernels/exchange/sums.cuh"
#include "kernels/launch.h"

namespace seqpar::device {
namespace {

/// One warp adds the terms in `slots` into the part of the region.
template <typename Number>
__device__ void sumSlots(const RecvReduceArgs& sum, const Part& part, const std::byte* const* slots) {
  constexpr int kVec16s = 4;
  constexpr std::uint64_t kStep = 32 * sizeof(Vec16);
  for (std::uint64_t begin = part.begin + CudaWarpGroup::thread() * sizeof(Vec16); begin < part.end;
       begin += kVec16s * kStep) {
    bool has[kVec16s];
#pragma unroll
    for (int u = 0; u < kVec16s; ++u) has[u] = begin + u * kStep < part.end;
    const auto out = [&](int u) {
      const std::uint64_t at = begin + u * kStep;
      return sum.region.run.by == 0 ? sum.region.base + at
                                    : addressInRuns(sum.region, static_cast<std::uint32_t>(at >> 4));
    };
    const auto termAt = [&](int term, int u) {
      const std::uint64_t at = begin + u * kStep;
      const int payload = sum.payload[term];
      return payload < 0 ? sum.own + at : slots[payload] + (at - part.begin);
    };
    addTerms<Number, Vec16, kVec16s>(has, sum.existing != 0, false, sum.count, out, termAt,
                                     [](int, int) { return 1.0F; });
  }
}

template <class Args, typename Number>
__global__ void __launch_bounds__(kRouteWarps * 32)
    recvReduceKernel(const __grid_constant__ Args args, const __grid_constant__ RecvReduceArgs sum) {
  __shared__ ChunkCounts counts[kRouteWarps];
  __shared__ const std::byte* slots[kWarpFifos][kMostPeers];
  const int warp = warpNumber();
  if (warp < kWarpFifos) return sendRoute(args, args.inlineRegions, warp, counts[warp]);
  const int warpFifo = warp - kWarpFifos;
  takeChunks<ByteFifoMemory, CudaWarpGroup>(
      args.waitPolicy, args.payloads + args.sends, args.receives, static_cast<int>(blockIdx.x), warpFifo, counts[warp],
      slots[warpFifo], [&](const Part& part, const std::byte* const* from) { sumSlots<Number>(sum, part, from); });
}

}  // namespace

cudaError_t launchRecvReduce(const FewArgs& route, const RecvReduceArgs& sum, seqparDataType_t type,
                             cudaStream_t stream) {
  constexpr int kThreads = kRouteWarps * 32;
  return withNumber(type, [&](auto number) {
    return launchKernel(recvReduceKernel<FewArgs, decltype(number)>, {channelsOf(route), kThreads, 0, stream}, route,
                        sum);
  });
}

}  // namespace seqpar::device
