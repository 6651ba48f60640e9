#include <algorithm>
#include <span>

#include "kernels/exchange/launch.h"
#include "kernels/exchange/route_kernel.cuh"
#include "kernels/launch.h"

namespace seqpar::device {
namespace {

/// Bytes per CTA of a rank's copy to itself.
constexpr std::uint64_t kSelfPart = 32 << 10;
/// The largest number of channels of a communicator.
constexpr std::uint64_t kMostChannels = 128;

/// Warps that have work in channel 0, the longest one, if all payloads use packets.
int warpsFor(std::span<const PeerPayload> payloads) {
  std::uint64_t blocks = 0;
  for (const auto& payload : payloads) {
    blocks += (std::min(payload.each, payload.bytes) + ByteFifoLayout::kBlockBytes - 1) / ByteFifoLayout::kBlockBytes;
  }
  return static_cast<int>(std::clamp<std::uint64_t>(blocks, 1, kPacketsWarps));
}

template <typename Args>
cudaError_t launch(Args& args, int channels, cudaStream_t stream) {
  const auto payloads = std::span(args.payloads).first(static_cast<std::size_t>(args.sends + args.receives));
  const int ctas = channelsOf(args);
  const bool chunks =
      std::any_of(payloads.begin(), payloads.end(), [](const auto& payload) { return payload.chunk != 0; });
  const auto needed = std::min<std::uint64_t>((args.selfSend.bytes + kSelfPart - 1) / kSelfPart, kMostChannels);
  const int own = std::min(static_cast<int>(needed), channels - ctas);
  if (ctas + own == 0) return cudaSuccess;
  constexpr int kThreads = kRouteWarps * 32;
  if (args.externalRegions != nullptr) {
    if constexpr (Args::kMostRegions == kMostInlineRegions) {
      return launchKernel(routeKernel<Args, true>, {std::max(ctas, own), kThreads, 0, stream}, args);
    } else {
      return cudaErrorInvalidValue;  // short lists are inline
    }
  }
  if (chunks) return launchKernel(routeKernel<Args, false>, {ctas, kThreads, 0, stream}, args);
  args.packetsCtas = ctas;
  const auto out = static_cast<std::size_t>(args.sends);
  const int most = std::max(warpsFor(payloads.first(out)), warpsFor(payloads.subspan(out)));
  const int warps = args.selfSend.bytes > 0 ? kPacketsWarps : most;
  return launchKernel(packetsKernel<Args>, {ctas + own, warps * 32, 0, stream}, args);
}

}  // namespace

cudaError_t launchRoute(FewArgs& args, int channels, cudaStream_t stream) {
  return launch(args, channels, stream);
}

cudaError_t launchRoute(ManyArgs& args, int channels, cudaStream_t stream) {
  return launch(args, channels, stream);
}

}  // namespace seqpar::device
