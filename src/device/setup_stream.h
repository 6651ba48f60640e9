// Streams for the setup of communicators and plans. All inline: two libraries contain it.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/cuda.h"

namespace seqpar {

/// One stream per device, created on first use and never destroyed: at exit the driver may have been unloaded. A GPU
/// has few hardware queues, and streams beyond their number are serialized. With one stream per plan, ranks that share
/// a GPU would block each other.
class DeviceStreams {
 public:
  /// The current device's stream.
  cudaStream_t get() {
    int device = 0;
    checkCuda(cudaGetDevice(&device), "cudaGetDevice");
    const std::lock_guard lock(mutex_);
    auto& stream = streams_[device];
    if (stream == nullptr) {
      checkCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    return stream;
  }

 private:
  std::mutex mutex_;
  std::map<int, cudaStream_t> streams_;
};

/// The setup stream of the current device. It is not the default stream, which would wait for the caller's kernels,
/// which may wait for this library. Work on the setup stream waits for no rank.
inline cudaStream_t setupStream() {
  static auto& streams = *std::make_unique<DeviceStreams>().release();
  return streams.get();
}

/// A stream of the current device for captures that are never launched. One thread uses it at a time: the constructor
/// waits for other threads.
class CaptureStream {
 public:
  CaptureStream() : lock_(mutex()), stream_(streams().get()) {}
  cudaStream_t get() const { return stream_; }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static DeviceStreams& streams() {
    static auto& all = *std::make_unique<DeviceStreams>().release();
    return all;
  }

  std::unique_lock<std::mutex> lock_;
  cudaStream_t stream_;
};

}  // namespace seqpar
