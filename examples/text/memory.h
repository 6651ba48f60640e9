// Memory of a rank's arrays, on the host or on a GPU, and the GPU's communicator.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ranks.h"
#ifdef EXAMPLE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

/// Called before the first CUDA call, for ranks that share a GPU: the first launch of a kernel must not wait for the
/// device, and streams must not share hardware queues, because kernels of the ranks wait for each other.
inline void letRanksShareGpus() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

/// GPUs of this host; 0 in builds without CUDA.
inline int countGpus() {
  int count = 0;
#ifdef EXAMPLE_HAS_CUDA
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
#endif
  return count;
}

/// The GPU of this rank: its local rank, if the launcher sets it, modulo the number of GPUs.
inline int gpuOf(size_t rank) {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
    if (const char* const local = std::getenv(name)) return std::atoi(local) % countGpus();
  }
  return static_cast<int>(rank) % countGpus();
}

/// A communicator of the ranks' GPUs. The host communicator distributes its id.
class GpuComm {
 public:
  GpuComm(const Ranks& ranks, int device) {
    std::array<seqparUniqueId, 1> id{};
    if (ranks.rank() == 0) require(seqparGetUniqueId(id.data()));
    ranks.broadcast(std::span<seqparUniqueId>(id));
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.device = device;
    require(seqparCommInitRankConfig(&comm_, static_cast<int>(ranks.count()), id[0], static_cast<int>(ranks.rank()),
                                     &config));
  }
  GpuComm(const GpuComm&) = delete;
  GpuComm& operator=(const GpuComm&) = delete;
  ~GpuComm() { seqparCommDestroy(comm_); }
  seqparComm_t get() const { return comm_; }

 private:
  seqparComm_t comm_ = nullptr;
};

/// Arrays of one rank, identified by the host vectors that they copy. On the host they are the vectors themselves.
class Memory {
 public:
  explicit Memory(int device = SEQPAR_HOST_DEVICE) : device_(device) {
#ifdef EXAMPLE_HAS_CUDA
    if (device == SEQPAR_HOST_DEVICE) return;
    check(cudaSetDevice(device));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
#endif
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
#ifdef EXAMPLE_HAS_CUDA
    for (const auto& [host, copy] : copies_) cudaFree(copy);
    if (device_ != SEQPAR_HOST_DEVICE) cudaStreamDestroy(stream_);
#endif
  }

  /// The array for `numbers` in calls; `numbers` must not move.
  float* place(const std::vector<float>& numbers) {
    auto* const host = const_cast<float*>(numbers.data());
    if (device_ == SEQPAR_HOST_DEVICE) return host;
    float* copy = nullptr;
#ifdef EXAMPLE_HAS_CUDA
    void* memory = nullptr;
    check(cudaMalloc(&memory, numbers.size() * sizeof(float)));
    copy = static_cast<float*>(memory);
    copies_.emplace_back(host, copy);
    check(cudaMemcpy(copy, host, numbers.size() * sizeof(float), cudaMemcpyHostToDevice));
#endif
    return copy;
  }
  /// Copies an array back to its vector.
  void fetch(std::vector<float>& numbers) const {
#ifdef EXAMPLE_HAS_CUDA
    for (const auto& [host, copy] : copies_) {
      if (host == numbers.data()) {
        check(cudaMemcpy(numbers.data(), copy, numbers.size() * sizeof(float), cudaMemcpyDeviceToHost));
      }
    }
#else
    static_cast<void>(numbers);
#endif
  }

#ifdef EXAMPLE_HAS_CUDA
  void* stream() const {
    return stream_;
  }
  void synchronize() const {
    if (device_ != SEQPAR_HOST_DEVICE) check(cudaStreamSynchronize(stream_));
  }
#else
  void* stream() const {
    return nullptr;
  }
  void synchronize() const {}
#endif

 private:
#ifdef EXAMPLE_HAS_CUDA
  static void check(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  }
  cudaStream_t stream_ = nullptr;
  std::vector<std::pair<float*, float*>> copies_;
#endif
  int device_;
};
