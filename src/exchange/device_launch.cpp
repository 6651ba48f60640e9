#include "exchange/device_launch.h"

#include <algorithm>
#include <memory>

#include "device/cuda.h"
#include "kernels/exchange/launch.h"

namespace seqpar {
namespace {

using device::RegionArg;

/// A list of regions that is too long for a kernel parameter, in memory that is freed after the launch in stream order.
class ExternalRegions {
 public:
  ExternalRegions(std::span<const RegionArg> regions, cudaStream_t stream) : stream_(stream) {
    if (regions.size() <= device::kMostInlineRegions) return;
    if (capturing(stream)) {
      fail(seqparInvalidUsage, "an exchange of ", regions.size(), " regions during a capture; expected at most ",
           device::kMostInlineRegions);
    }
    checkAllocation(cudaMallocAsync(&memory_, regions.size_bytes(), stream), "cudaMallocAsync", regions.size_bytes(),
                    "the regions of an exchange");
    checkCuda(cudaMemcpyAsync(memory_, regions.data(), regions.size_bytes(), cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync");
  }
  ExternalRegions(const ExternalRegions&) = delete;
  ExternalRegions& operator=(const ExternalRegions&) = delete;
  ~ExternalRegions() {
    if (memory_ != nullptr) noteCuda(cudaFreeAsync(memory_, stream_), "cudaFreeAsync");
  }

  const RegionArg* get() const { return static_cast<const RegionArg*>(memory_); }

 private:
  cudaStream_t stream_;
  void* memory_ = nullptr;
};

template <typename Args>
void fillRegions(Args& args, const ExternalRegions& externalRegions, std::span<const RegionArg> regions) {
  args.externalRegions = externalRegions.get();
  if (args.externalRegions == nullptr) std::copy(regions.begin(), regions.end(), args.inlineRegions);
}

template <typename Args>
void launchRouteWith(const PeerView& view, const DevicePayloads& sends, const DevicePayloads& receives,
                     std::span<const RegionArg> regions, cudaStream_t stream) {
  const ExternalRegions externalRegions(regions, stream);
  const auto args = makeRouteArgs<Args>(view, sends, receives);
  fillRegions(*args, externalRegions, regions);
  checkCuda(device::launchRoute(*args, view.byteFifoChannels, stream), "routeKernel");
}

}  // namespace

void launchRoute(const PeerView& view, const DevicePayloads& sends, const DevicePayloads& receives,
                 DeviceStream stream) {
  std::vector<RegionArg> regions = sends.regions;
  regions.insert(regions.end(), receives.regions.begin(), receives.regions.end());
  const auto on = static_cast<cudaStream_t>(stream);
  if (areFew(sends, receives)) return launchRouteWith<device::FewArgs>(view, sends, receives, regions, on);
  launchRouteWith<device::ManyArgs>(view, sends, receives, regions, on);
}

void launchPayloads(bool gather, std::span<const device::PeerPayload> payloads, std::span<std::byte* const> memory,
                    std::span<const RegionArg> regions, DeviceStream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const ExternalRegions externalRegions(regions, on);
  const auto args = std::make_unique<device::PayloadArgs>();
  fillRegions(*args, externalRegions, regions);
  constexpr std::size_t kMost = device::PayloadArgs::kMostCopies;
  for (std::size_t first = 0; first < payloads.size(); first += kMost) {
    const auto part = payloads.subspan(first, std::min(payloads.size() - first, kMost));
    for (std::size_t i = 0; i < part.size(); ++i) args->copies[i] = {part[i], memory[first + i]};
    args->count = static_cast<int>(part.size());
    checkCuda(device::launchPayloads(gather, *args, on), "payloadKernel");
  }
}

}  // namespace seqpar
