// Launches of exchanges and of sums on one GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/exchange/combine_args.h"
#include "kernels/exchange/payload.h"
#include "seqpar/types.h"

namespace seqpar::device {

/// An exchange between peers, by the kernel that suits it; writes args.packetsCtas. `channels`: largest number of CTAs.
cudaError_t launchRoute(FewArgs& args, int channels, cudaStream_t stream);
cudaError_t launchRoute(ManyArgs& args, int channels, cudaStream_t stream);

/// An exchange that adds all incoming payloads into one region, directly out of the receiver's byte FIFOs.
cudaError_t launchRecvReduce(const FewArgs& route, const RecvReduceArgs& sum, seqparDataType_t type,
                             cudaStream_t stream);

/// Copies payloads out of their regions into memory (`gather`), or back.
cudaError_t launchPayloads(bool gather, const PayloadArgs& args, cudaStream_t stream);

/// Adds terms in local memory. `work`: accesses of the largest sum, or rows; `ctas`: largest number of CTAs.
cudaError_t launchCombine(const CombineArgs& args, seqparDataType_t type, std::uint64_t work, std::uint64_t ctas,
                          cudaStream_t stream);

}  // namespace seqpar::device
