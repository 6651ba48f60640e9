#include "exchange/device_regions.h"

namespace seqpar {

ExternalRegions::ExternalRegions(std::span<const device::RegionArg> regions, cudaStream_t stream) : stream_(stream) {
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

ExternalRegions::~ExternalRegions() {
  if (memory_ != nullptr) noteCuda(cudaFreeAsync(memory_, stream_), "cudaFreeAsync");
}

}  // namespace seqpar
