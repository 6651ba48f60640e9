#include "exchange/device_launch.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "device/launch.h"
#include "exchange/device_route.h"
#include "kernels/exchange/payload_kernel.cuh"

namespace seqpar {
namespace {

using device::RegionArg;

/// CTAs for what a rank copies to itself.
constexpr std::uint64_t kSelfPart = 32 << 10;
/// The most that a communicator has.
constexpr std::uint64_t kMostChannels = 128;

/// A list of regions that is too long for a parameter, in memory that lives as long as the launch needs it.
class FarRegions {
 public:
  FarRegions(std::span<const RegionArg> regions, cudaStream_t stream) : stream_(stream) {
    if (regions.size() <= kMostInlineRegions) return;
    if (capturing(stream)) {
      fail(seqparInvalidUsage, "an exchange of ", regions.size(), " regions during a capture; expected at most ",
           kMostInlineRegions);
    }
    checkCuda(cudaMallocAsync(&memory_, regions.size_bytes(), stream), "cudaMallocAsync");
    checkCuda(cudaMemcpyAsync(memory_, regions.data(), regions.size_bytes(), cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync");
  }
  FarRegions(const FarRegions&) = delete;
  FarRegions& operator=(const FarRegions&) = delete;
  ~FarRegions() {
    if (memory_ != nullptr) noteCuda(cudaFreeAsync(memory_, stream_), "cudaFreeAsync");
  }

  const RegionArg* get() const { return static_cast<const RegionArg*>(memory_); }

 private:
  cudaStream_t stream_;
  void* memory_ = nullptr;
};

template <typename Args>
void fillRegions(Args& args, const FarRegions& far, std::span<const RegionArg> regions) {
  args.far = far.get();
  if (args.far == nullptr) std::copy(regions.begin(), regions.end(), args.near);
}

/// Warps that find something to do in channel 0, which has most, if all payloads go in packets.
int warpsFor(std::span<const device::PeerPayload> payloads) {
  std::uint64_t blocks = 0;
  for (const auto& payload : payloads) {
    blocks += (std::min(payload.each, payload.bytes) + ByteFifoLayout::kBlockBytes - 1) / ByteFifoLayout::kBlockBytes;
  }
  return static_cast<int>(std::clamp<std::uint64_t>(blocks, 1, device::kPacketsWarps));
}

template <typename Args>
void launchRouteWith(const PeerView& view, const DevicePayloads& sends, const DevicePayloads& receives,
                     std::span<const RegionArg> regions, cudaStream_t stream) {
  const FarRegions far(regions, stream);
  const auto args = makeRouteArgs<Args>(view, sends, receives);
  fillRegions(*args, far, regions);

  const auto payloads = std::span(args->payloads).first(static_cast<std::size_t>(args->sends + args->receives));
  const int ctas = channelsOf(payloads);
  const bool chunks =
      std::any_of(payloads.begin(), payloads.end(), [](const auto& payload) { return payload.chunk != 0; });
  const auto wanted = std::min<std::uint64_t>((sends.self.bytes + kSelfPart - 1) / kSelfPart, kMostChannels);
  const int own = std::min(static_cast<int>(wanted), view.byteFifoChannels - ctas);
  if (ctas + own == 0) return;
  constexpr int kThreads = device::kRouteWarps * 32;
  if (args->far != nullptr) {
    if constexpr (Args::kMostRegions == kMostInlineRegions) {
      launchKernel("routeKernel", device::routeKernel<Args, true>, {std::max(ctas, own), kThreads, 0, stream}, *args);
    }
  } else if (chunks) {
    launchKernel("routeKernel", device::routeKernel<Args, false>, {ctas, kThreads, 0, stream}, *args);
  } else {
    args->packetsCtas = ctas;
    const auto out = static_cast<std::size_t>(args->sends);
    const int most = std::max(warpsFor(payloads.first(out)), warpsFor(payloads.subspan(out)));
    const int warps = sends.self.bytes > 0 ? device::kPacketsWarps : most;
    launchKernel("packetsKernel", device::packetsKernel<Args>, {ctas + own, warps * 32, 0, stream}, *args);
  }
}

template <bool kGather, int kInline>
void launchPayloadsWith(std::span<const device::PeerPayload> payloads, std::span<std::byte* const> memory,
                        std::span<const RegionArg> regions, cudaStream_t stream) {
  const FarRegions far(regions, stream);
  const auto args = std::make_unique<device::PayloadArgs<kInline>>();
  fillRegions(*args, far, regions);
  for (std::size_t first = 0; first < payloads.size(); first += device::kMostPayloads) {
    const auto part = payloads.subspan(first, std::min<std::size_t>(payloads.size() - first, device::kMostPayloads));
    int ctas = 0;
    for (std::size_t i = 0; i < part.size(); ++i) {
      args->copies[i] = {part[i], memory[first + i]};
      ctas = std::max(ctas, part[i].channels);
    }
    args->count = static_cast<int>(part.size());
    if (ctas == 0) continue;
    launchKernel("payloadKernel", device::payloadKernel<kGather, kInline>, {ctas, device::kPayloadThreads, 0, stream},
                 *args);
  }
}

}  // namespace

void launchRoute(const PeerView& view, const DevicePayloads& sends, const DevicePayloads& receives,
                 DeviceStream stream) {
  std::vector<RegionArg> regions = sends.regions;
  regions.insert(regions.end(), receives.regions.begin(), receives.regions.end());
  const auto on = static_cast<cudaStream_t>(stream);
  if (areFew(sends, receives)) return launchRouteWith<FewArgs>(view, sends, receives, regions, on);
  launchRouteWith<ManyArgs>(view, sends, receives, regions, on);
}

void launchPayloads(bool gather, std::span<const device::PeerPayload> payloads, std::span<std::byte* const> memory,
                    std::span<const RegionArg> regions, DeviceStream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (gather) return launchPayloadsWith<true, kMostInlineRegions>(payloads, memory, regions, on);
  launchPayloadsWith<false, kMostInlineRegions>(payloads, memory, regions, on);
}

}  // namespace seqpar
