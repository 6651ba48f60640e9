// Copies of tables from host memory that kernels read later.
#pragma once

#include <cstddef>

#include "device/cuda.h"
#include "device/setup_stream.h"

namespace seqpar {

/// memory = data, there for every stream when it returns. cudaMemcpy() from memory that is not pinned may return while
/// the last of it is on its way, and streams that do not wait for the default one would read what was there before.
inline void upload(void* memory, const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  auto* const stream = setupStream();
  checkCuda(cudaMemcpyAsync(memory, data, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  checkCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace seqpar
