// Counting on the device, in stream order, for the host to look at.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace seqpar {

/// Adds 1 to `counter`, in mapped host memory; also when replayed from a graph.
cudaError_t launchMark(volatile std::uint32_t* counter, cudaStream_t stream);

}  // namespace seqpar
