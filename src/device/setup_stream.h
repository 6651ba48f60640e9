// The streams on which communicators and plans are made. All inline: two libraries have it.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/cuda.h"

namespace seqpar {

/// A stream for each device, made when it is first wanted and never destroyed: at exit the driver may be gone. A GPU
/// has few queues, and streams beyond their number are served one after the other; with streams of their own for each
/// plan, ranks that share a GPU would wait for each other in vain.
class DeviceStreams {
 public:
  /// The current device's.
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

/// The stream for set-up on the current device: not the default one, which would wait for the caller's kernels, which
/// may wait for us. What is enqueued here waits for nothing.
inline cudaStream_t setupStream() {
  static auto& streams = *std::make_unique<DeviceStreams>().release();
  return streams.get();
}

/// A stream of the current device for capturing what is never launched. One thread's at a time: the constructor waits
/// for the others.
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
