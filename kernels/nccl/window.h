// Addresses of NCCL's symmetric windows, which only device code can query. Requires NCCL 2.28 or later.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

namespace seqpar {

/// pointers[peer] = local address of the peer's part of `window`, for the first `peers` peers; `pointers` is device
/// memory.
cudaError_t launchFindPeers(ncclWindow_t window, int peers, void** pointers, cudaStream_t stream);

}  // namespace seqpar
