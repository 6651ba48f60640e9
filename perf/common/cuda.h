// C++ wrappers of CUDA's objects. Only for sources compiled with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace seqpar::perf {

/// Throws unless `result` is success.
inline void checkCuda(cudaError_t result, const char* call) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(result));
}

struct FreeDevice {
  void operator()(void* memory) const noexcept { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<void, FreeDevice>;

struct FreePinned {
  void operator()(void* memory) const noexcept { cudaFreeHost(memory); }
};
/// Host memory that kernels can address.
using PinnedMemory = std::unique_ptr<void, FreePinned>;

struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
using StreamHandle = std::unique_ptr<CUstream_st, DestroyStream>;

struct DestroyEvent {
  void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
};
using EventHandle = std::unique_ptr<CUevent_st, DestroyEvent>;

inline DeviceMemory allocateDevice(size_t bytes) {
  void* memory = nullptr;
  checkCuda(cudaMalloc(&memory, bytes), "cudaMalloc");
  return DeviceMemory(memory);
}

}  // namespace seqpar::perf
