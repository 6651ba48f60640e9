// C++ wrappers of CUDA's objects, and CUDA's errors as Errors.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"

namespace seqpar {

/// The current device's free memory, for errors: "GPU 0 has 5 of 10 bytes free".
inline std::string deviceMemoryLeft() {
  int device = 0;
  std::size_t left = 0, all = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaMemGetInfo(&left, &all) != cudaSuccess) {
    (void)cudaGetLastError();
    return "how much the GPU has free is not known";
  }
  return concat("GPU ", device, " has ", left, " of ", all, " bytes free");
}

/// Throws UnhandledCudaError in the name of `call` unless `result` is success; SystemError if memory ran out. Clears
/// the runtime's error state, so that a later call does not report the error again.
inline void checkCuda(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();
  const bool memory = result == cudaErrorMemoryAllocation;
  fail(memory ? seqparSystemError : seqparUnhandledCudaError, call, ": ", cudaGetErrorString(result), " (",
       cudaGetErrorName(result), ")", memory ? "; " : "", memory ? deviceMemoryLeft() : std::string());
}

/// checkCuda() of a call that allocates `bytes` for `what`.
inline void checkAllocation(cudaError_t result, const char* call, std::size_t bytes, const char* what) {
  if (result == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    failNoMemory(what, bytes, concat(call, ": ", cudaGetErrorName(result), ", ", deviceMemoryLeft()));
  }
  checkCuda(result, call);
}

/// For calls that cannot report a failure, for example in destructors: logs the error and clears the runtime's error
/// state, so that no later call reports it. Returns true if there was no error.
inline bool noteCuda(cudaError_t result, const char* call) noexcept {
  if (result == cudaSuccess) return true;
  (void)cudaGetLastError();
  // At the end of a process the runtime may have been unloaded already.
  if (result != cudaErrorCudartUnloading) {
    try {
      log(LogLevel::Warn, call, ": ", cudaGetErrorString(result), " (", cudaGetErrorName(result), ")");
    } catch (const std::exception&) {
    }  // no memory for the line
  }
  return false;
}

/// Lets this thread allocate, free, query and wait during a stream capture by this thread or, in global mode, by
/// another one. The calls are not captured.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept {
    active_ = noteCuda(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() {
    if (active_) noteCuda(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
  }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool active_ = false;
};

/// Sets the calling thread's current device, and restores the previous one in the destructor.
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
    if (changed_) noteCuda(cudaSetDevice(before_), "cudaSetDevice");
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

struct FreeDevice {
  void operator()(std::byte* memory) const noexcept {
    const RelaxedCapture relaxed;
    noteCuda(cudaFree(memory), "cudaFree");
  }
};
/// Memory of the device that was current at the allocation.
using DeviceMemory = std::unique_ptr<std::byte[], FreeDevice>;

/// Throws a SystemError that names the bytes requested, `what`, and the current device's free memory.
inline DeviceMemory allocateDevice(std::size_t bytes, const char* what) {
  void* memory = nullptr;
  checkAllocation(cudaMalloc(&memory, bytes), "cudaMalloc", bytes, what);
  return DeviceMemory(static_cast<std::byte*>(memory));
}

struct FreeMapped {
  void operator()(std::byte* memory) const noexcept {
    const RelaxedCapture relaxed;
    noteCuda(cudaFreeHost(memory), "cudaFreeHost");
  }
};
/// Host memory that every device can read and write, at the same address.
using MappedMemory = std::unique_ptr<std::byte[], FreeMapped>;

inline MappedMemory allocateMapped(std::size_t bytes, const char* what) {
  void* memory = nullptr;
  checkAllocation(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc", bytes,
                  what);
  return MappedMemory(static_cast<std::byte*>(memory));
}

struct DestroyEvent {
  void operator()(cudaEvent_t event) const noexcept { noteCuda(cudaEventDestroy(event), "cudaEventDestroy"); }
};
using EventHandle = std::unique_ptr<CUevent_st, DestroyEvent>;

inline EventHandle makeEvent() {
  cudaEvent_t event = nullptr;
  checkCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return EventHandle(event);
}

struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { noteCuda(cudaStreamDestroy(stream), "cudaStreamDestroy"); }
};
using StreamHandle = std::unique_ptr<CUstream_st, DestroyStream>;

/// A non-blocking stream: not ordered with the default stream, which waits for the caller's kernels.
inline StreamHandle makeStream() {
  cudaStream_t stream = nullptr;
  checkCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return StreamHandle(stream);
}

/// The capture that `stream` is part of.
struct Capture {
  unsigned long long id = 0;  ///< unique in the process; 0: the stream is not being captured
  cudaGraph_t graph = nullptr;

  explicit operator bool() const { return id != 0; }
};

/// Throws UnhandledCudaError also if the capture has been invalidated, so that no work is enqueued in vain.
inline Capture captureOf(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture found;
  checkCuda(cudaStreamGetCaptureInfo(stream, &status, &found.id, &found.graph), "cudaStreamGetCaptureInfo");
  if (status == cudaStreamCaptureStatusInvalidated) {
    checkCuda(cudaErrorStreamCaptureInvalidated, "a call on a stream that is being captured");
  }
  return status == cudaStreamCaptureStatusActive ? found : Capture{};
}

/// True while `stream` is being captured into a graph.
inline bool capturing(cudaStream_t stream) {
  return static_cast<bool>(captureOf(stream));
}

}  // namespace seqpar
