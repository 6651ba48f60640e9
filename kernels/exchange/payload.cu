// Copies payloads between their regions and contiguous memory on one GPU: data that NCCL sends, or that is combined
// later.
//
// Work      CTA l copies channel l of each payload
// Roles     all threads alike
// Tiles     one access of a region's width per thread (regions.h)
// Smem      none
// Barriers  none
// Overlap   none
#include <algorithm>

#include "kernels/exchange/launch.h"
#include "kernels/exchange/regions.h"
#include "kernels/launch.h"

namespace seqpar::device {
namespace {

constexpr int kPayloadThreads = 512;

/// CTA l copies channel l of each payload.
template <bool kGather>
__global__ void __launch_bounds__(kPayloadThreads) payloadKernel(const __grid_constant__ PayloadArgs args) {
  for (int i = 0; i < args.count; ++i) {
    const PayloadCopy& copy = args.copies[i];
    const Part part = partOf(copy.payload, blockIdx.x);
    if (part.begin >= part.end) continue;
    copyPayload<kGather>(args.regions(), copy.payload, part, copy.memory + part.begin, threadIdx.x, blockDim.x);
  }
}

}  // namespace

cudaError_t launchPayloads(bool gather, const PayloadArgs& args, cudaStream_t stream) {
  int ctas = 0;
  for (int i = 0; i < args.count; ++i) ctas = std::max(ctas, args.copies[i].payload.channels);
  if (ctas == 0) return cudaSuccess;
  return launchKernel(gather ? payloadKernel<true> : payloadKernel<false>, {ctas, kPayloadThreads, 0, stream}, args);
}

}  // namespace seqpar::device
