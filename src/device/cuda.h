// CUDA's objects as C++ objects, and its errors as Errors.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "base/error.h"

namespace seqpar {

/// Throws UnhandledCudaError in the name of `call` unless `result` is success. The error is taken from the runtime, so
/// that a later call does not report it again.
inline void checkCuda(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();
  fail(result == cudaErrorMemoryAllocation ? seqparSystemError : seqparUnhandledCudaError, call, ": ",
       cudaGetErrorString(result), " (", cudaGetErrorName(result), ")");
}

/// Makes a device current for the calling thread, and the one before it again at the end.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    checkCuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (device != before_) checkCuda(cudaSetDevice(device), "cudaSetDevice");
    changed_ = device != before_;
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

struct FreeDevice {
  void operator()(std::byte* memory) const noexcept { cudaFree(memory); }
};
/// Memory of the device that was current.
using DeviceMemory = std::unique_ptr<std::byte[], FreeDevice>;

inline DeviceMemory allocateDevice(std::size_t bytes) {
  void* memory = nullptr;
  checkCuda(cudaMalloc(&memory, bytes), "cudaMalloc");
  return DeviceMemory(static_cast<std::byte*>(memory));
}

struct FreeMapped {
  void operator()(std::byte* memory) const noexcept { cudaFreeHost(memory); }
};
/// Host memory that every device can read and write, at the same address.
using MappedMemory = std::unique_ptr<std::byte[], FreeMapped>;

inline MappedMemory allocateMapped(std::size_t bytes) {
  void* memory = nullptr;
  checkCuda(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
  return MappedMemory(static_cast<std::byte*>(memory));
}

struct DestroyEvent {
  void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
};
using EventHandle = std::unique_ptr<CUevent_st, DestroyEvent>;

inline EventHandle makeEvent() {
  cudaEvent_t event = nullptr;
  checkCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return EventHandle(event);
}

struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
using StreamHandle = std::unique_ptr<CUstream_st, DestroyStream>;

/// A stream that does not wait for the default stream, which waits for the caller's kernels.
inline StreamHandle makeStream() {
  cudaStream_t stream = nullptr;
  checkCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return StreamHandle(stream);
}

/// True while `stream` is being captured into a graph.
inline bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  checkCuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace seqpar
