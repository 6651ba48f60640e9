// Words of device memory as signals between streams: waiting for one needs no SM, not even one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace seqpar {

/// Whether the driver can do what follows. It is asked at run time, so that nothing is linked to it.
bool canStreamWait();

/// Holds later work of `stream` until `word`, four bytes of the current device's memory, is `value` or later, going
/// round: int32(*word - value) >= 0. Not during a capture. Throws UnhandledCudaError.
void streamWait(cudaStream_t stream, const std::byte* word, std::uint32_t value);

}  // namespace seqpar
