// The suites' backend on GPUs, and the exit of test programs without a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bounds.h"
#include "common/backend.h"
#include "gpu/support/fill.h"

namespace seqpar::test {

inline void expectCuda(cudaError_t result, const char* call) {
  expect(result == cudaSuccess, call, ": ", cudaGetErrorString(result));
}

/// Exit status of a skipped test. Its output has a line with the reason that starts with "skipped".
constexpr int kSkipped = 77;

/// The number of GPUs; ends the program as skipped if there are fewer than `least`.
inline int requireGpus(int least) {
  // A kernel that is loaded at its first launch waits for the device, where another rank's kernel may wait for it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // NOLINT: no other thread is running yet
  // Streams beyond this number are serialized, and one rank's kernel would wait behind another's.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // NOLINT
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count >= least) return count;
  std::printf("skipped: %d GPUs needed, %d found (%s)\n", least, result == cudaSuccess ? count : 0,
              cudaGetErrorString(result));
  std::exit(kSkipped);  // NOLINT: no other thread is running yet
}

/// Pinned memory in one region from the start: cudaHostAlloc and cudaFreeHost wait for the device's kernels, which may
/// wait for a rank that shares the device and is about to allocate.
class Slab {
 public:
  explicit Slab(std::size_t bytes) {
    void* memory = nullptr;
    expectCuda(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    base_ = static_cast<char*>(memory);
    free_[0] = bytes;
  }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() { cudaFreeHost(base_); }

  /// First fit; null if nothing fits.
  void* allocate(std::size_t bytes) {
    constexpr std::size_t kPacket = 256;
    const std::size_t size = bytes == 0 ? kPacket : (bytes + kPacket - 1) / kPacket * kPacket;
    const std::lock_guard lock(mutex_);
    for (auto gap = free_.begin(); gap != free_.end(); ++gap) {
      if (gap->second < size) continue;
      const auto [offset, length] = *gap;
      free_.erase(gap);
      if (length > size) free_[offset + size] = length - size;
      used_[offset] = size;
      return base_ + offset;
    }
    return nullptr;
  }

  void release(void* memory) noexcept {
    const std::lock_guard lock(mutex_);
    const auto node = used_.extract(static_cast<std::size_t>(static_cast<char*>(memory) - base_));
    auto gap = free_.emplace(node.key(), node.mapped()).first;
    if (const auto next = std::next(gap); next != free_.end() && gap->first + gap->second == next->first) {
      gap->second += next->second;
      free_.erase(next);
    }
    if (gap == free_.begin()) return;
    if (const auto before = std::prev(gap); before->first + before->second == gap->first) {
      before->second += gap->second;
      free_.erase(gap);
    }
  }

 private:
  char* base_ = nullptr;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_, used_;  ///< length by offset
};

/// Pinned host memory, which kernels and the test both address; streams of the calling thread's device.
class DeviceBackend : public Backend {
 public:
  /// For `ranks` threads of this process. `sharing`: some have the same GPU, and thus the same default stream, where
  /// their kernels would block each other; every thread gets a separate stream instead. `pinned`: bytes for buffers.
  explicit DeviceBackend(int ranks, bool sharing = false, std::size_t pinned = std::size_t{1} << 30)
      : ranks_(ranks), sharing_(sharing), slab_(pinned) {}

  void* noStream() override { return sharing_ ? cudaStreamPerThread : nullptr; }

  void barrier() override {
    if (ranks_ <= 1) return;
    std::unique_lock lock(mutex_);
    const unsigned round = round_;
    if (++met_ == ranks_) {
      met_ = 0;
      ++round_;
      all_.notify_all();
    }
    const auto limit = patience(std::chrono::seconds(60));
    const bool arrived = all_.wait_for(lock, limit, [&] { return round_ != round; });
    expect(arrived, "a rank did not come to a meeting of ", ranks_, " within ", limit.count(), " ms");
  }

  void* allocate(std::size_t bytes) override { return slab_.allocate(bytes); }
  void release(void* memory) noexcept override { slab_.release(memory); }

  /// Uses a kernel: a copy between host buffers waits for its stream on the host, under a driver lock that the rank
  /// which the stream waits for may need.
  void copy(void* into, const void* from, std::size_t bytes, void* stream) override {
    expectCuda(launchCopy(into, from, bytes, static_cast<cudaStream_t>(stream)), "copying");
  }

  bool hasGraphs() const override { return !sharing_; }
  void* capture(void* stream, const std::function<void()>& body) override {
    const auto on = static_cast<cudaStream_t>(stream);
    barrier();
    expectCuda(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    body();
    cudaGraph_t graph = nullptr;
    expectCuda(cudaStreamEndCapture(on, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t ready = nullptr;
    expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
    expectCuda(cudaGraphUpload(ready, on), "cudaGraphUpload");
    expectCuda(cudaStreamSynchronize(on), "cudaStreamSynchronize");
    expectCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    barrier();
    return ready;
  }
  void replay(void* graph, void* stream) override {
    expectCuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream)),
               "cudaGraphLaunch");
  }
  void releaseGraph(void* graph) override {
    expectCuda(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)), "cudaGraphExecDestroy");
  }

  /// Streams are kept and reused: cudaStreamDestroy also takes the driver's lock. If GPUs are shared, a rank has two
  /// streams and gets them in turn: streams beyond the number of a GPU's queues are serialized, and one rank's kernel
  /// would wait behind another's.
  void* makeStream() override {
    const std::lock_guard lock(mutex_);
    auto& mine = streams_[sharing_ ? std::this_thread::get_id() : std::thread::id()][currentDevice()];
    if (sharing_ && mine.made == kSharingStreams) {
      mine.idle.push_back(mine.idle.front());
      mine.idle.erase(mine.idle.begin());
      return mine.idle.back();
    }
    if (!sharing_ && !mine.idle.empty()) {
      auto* const stream = mine.idle.back();
      mine.idle.pop_back();
      return stream;
    }
    cudaStream_t stream = nullptr;
    expectCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    ++mine.made;
    if (sharing_) mine.idle.push_back(stream);
    return stream;
  }
  void destroyStream(void* stream) override {
    if (sharing_) return;
    const std::lock_guard lock(mutex_);
    streams_[std::thread::id()][currentDevice()].idle.push_back(static_cast<cudaStream_t>(stream));
  }
  void synchronize(void* stream) override {
    expectCuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
  }

 private:
  static int currentDevice() {
    int device = 0;
    expectCuda(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }

  int ranks_;
  bool sharing_;
  std::mutex mutex_;
  static constexpr int kSharingStreams = 2;
  struct Streams {
    int made = 0;
    std::vector<cudaStream_t> idle;  ///< if GPUs are shared: all of them, in the order of their turns
  };
  std::map<std::thread::id, std::map<int, Streams>> streams_;  ///< by thread, where GPUs are shared, and device
  std::condition_variable all_;
  int met_ = 0;
  unsigned round_ = 0;
  Slab slab_;
};

}  // namespace seqpar::test
