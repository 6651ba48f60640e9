// The suites' backend on GPUs, and what a test program does where there is none.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/backend.h"

namespace seqpar::test {

inline void expectCuda(cudaError_t result, const char* call) {
  expect(result == cudaSuccess, call, ": ", cudaGetErrorString(result));
}

/// Exit status of a test that did not run, and says why in a line that begins with "skipped".
constexpr int kSkipped = 77;

/// The number of GPUs; ends the program as skipped if there are fewer than `least`.
inline int requireGpus(int least) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count >= least) return count;
  std::printf("skipped: %d GPUs needed, %d found (%s)\n", least, result == cudaSuccess ? count : 0,
              cudaGetErrorString(result));
  std::exit(kSkipped);  // NOLINT: no other thread is running yet
}

/// Pinned host memory, which kernels and the test both address; streams of the calling thread's device.
class DeviceBackend : public Backend {
 public:
  /// `shared`: ranks of this process share a GPU. They then share the default stream too, in which their kernels would
  /// wait for each other in vain; every thread gets one of its own instead.
  explicit DeviceBackend(bool shared) : shared_(shared) {}

  void* noStream() override { return shared_ ? cudaStreamPerThread : nullptr; }

  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    constexpr unsigned kFlags = cudaHostAllocPortable | cudaHostAllocMapped;
    return cudaHostAlloc(&memory, bytes == 0 ? 1 : bytes, kFlags) == cudaSuccess ? memory : nullptr;
  }
  void release(void* memory) noexcept override { cudaFreeHost(memory); }

  void* makeStream() override {
    cudaStream_t stream = nullptr;
    expectCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
  }
  void destroyStream(void* stream) override {
    expectCuda(cudaStreamDestroy(static_cast<cudaStream_t>(stream)), "cudaStreamDestroy");
  }
  void synchronize(void* stream) override {
    expectCuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
  }

 private:
  bool shared_;
};

}  // namespace seqpar::test
