// What only device code can ask of NCCL's symmetric windows. For NCCL 2.28 and later.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

namespace seqpar {

/// pointers[peer] = where peer's part of `window` is mapped here, for the first `peers`; device memory.
cudaError_t launchFindPeers(ncclWindow_t window, int peers, void** pointers, cudaStream_t stream);

}  // namespace seqpar
