// A counter on the device, incremented in stream order and polled by the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace seqpar {

/// Adds 1 to `counter`, in mapped host memory. A replayed graph also adds.
cudaError_t launchMark(volatile std::uint32_t* counter, cudaStream_t stream);

}  // namespace seqpar
