// Payloads between their regions and plain memory, on one GPU: what NCCL sends, and what is combined later.
#pragma once

#include "kernels/exchange/regions.h"

namespace seqpar::device {

constexpr int kPayloadThreads = 512;
constexpr int kMostPayloads = 64;

/// A payload and the memory, aligned to 16, where it lies or shall lie in one region.
struct PayloadCopy {
  PeerPayload payload;
  std::byte* memory;
};

template <int kInline>
struct PayloadArgs {
  PayloadCopy copies[kMostPayloads];
  int count = 0;
  const RegionArg* far = nullptr;  ///< all regions, if they are not inline
  RegionArg near[kInline];

  __device__ const RegionArg* regions() const { return far != nullptr ? far : near; }
};

/// Channel l of each payload is CTA l's.
template <bool kGather, int kInline>
__global__ void __launch_bounds__(kPayloadThreads) payloadKernel(const __grid_constant__ PayloadArgs<kInline> args) {
  for (int i = 0; i < args.count; ++i) {
    const PayloadCopy& copy = args.copies[i];
    const Part part = partOf(copy.payload, blockIdx.x);
    if (part.begin >= part.end) continue;
    copyPayload<kGather>(args.regions(), copy.payload, part, copy.memory + part.begin, threadIdx.x, blockDim.x);
  }
}

}  // namespace seqpar::device
