// Copies of host tables to device memory for later kernels.
#pragma once

#include <cstddef>

#include "device/cuda.h"
#include "device/setup_stream.h"

namespace seqpar {

/// memory = data, visible to every stream on return. cudaMemcpy() from pageable memory may return before the copy has
/// finished, and streams that do not wait for the default one could then read stale data.
inline void upload(void* memory, const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  auto* const stream = setupStream();
  checkCuda(cudaMemcpyAsync(memory, data, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  checkCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace seqpar
