// Regions as parameters of kernels, in device memory if a list is too long for a parameter.
#pragma once

#include <algorithm>
#include <span>

#include "device/cuda.h"
#include "kernels/exchange/payload.h"

namespace seqpar {

/// Memory that is freed after the launch in stream order; none if the regions fit into a kernel parameter.
class ExternalRegions {
 public:
  /// InvalidUsage for a long list during a capture.
  ExternalRegions(std::span<const device::RegionArg> regions, cudaStream_t stream);
  ExternalRegions(const ExternalRegions&) = delete;
  ExternalRegions& operator=(const ExternalRegions&) = delete;
  ~ExternalRegions();

  const device::RegionArg* get() const { return static_cast<const device::RegionArg*>(memory_); }

 private:
  cudaStream_t stream_;
  void* memory_ = nullptr;
};

template <typename Args>
void fillRegions(Args& args, const ExternalRegions& externalRegions, std::span<const device::RegionArg> regions) {
  args.externalRegions = externalRegions.get();
  if (args.externalRegions == nullptr) std::copy(regions.begin(), regions.end(), args.inlineRegions);
}

}  // namespace seqpar
