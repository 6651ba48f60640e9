// Words of device memory as signals between streams: waiting for one needs no SM, not even one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace seqpar {

/// Whether the driver supports streamWait(). Queried at run time, so the library does not link against the driver.
bool canStreamWait();

/// Holds later work of `stream` until `word`, four bytes of the current device's memory, has reached `value` in
/// wrap-around order: int32(*word - value) >= 0. Not during a capture. Throws UnhandledCudaError.
void streamWait(cudaStream_t stream, const std::byte* word, std::uint32_t value);

}  // namespace seqpar
