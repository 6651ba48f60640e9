// Order between pieces of work that use the same memory on different streams.
#pragma once

#include "device/cuda.h"

namespace seqpar {

/// Not thread safe. The device of the streams must be current.
class StreamOrder {
 public:
  /// Later work of `stream` follows the work before the latest end(), on whatever stream; in a capture, that before the
  /// latest end() in the same capture: the caller orders replays. True: in a capture.
  bool begin(cudaStream_t stream) {
    const Capture capture = captureOf(stream);
    current_ = capture ? &captured_ : &direct_;
    if (!current_->event) current_->event = makeEvent();
    if (current_->capture != capture.id) current_->exists = false;
    if (current_->exists && stream != current_->stream) {
      checkCuda(cudaStreamWaitEvent(stream, current_->event.get(), 0), "cudaStreamWaitEvent");
    }
    current_->stream = stream;
    current_->capture = capture.id;
    return static_cast<bool>(capture);
  }

  /// Ends the work that begin() started; without begin() it has no effect.
  void end() {
    if (current_ == nullptr) return;
    checkCuda(cudaEventRecord(current_->event.get(), current_->stream), "cudaEventRecord");
    current_->exists = true;
    current_ = nullptr;
  }

  /// Waits on the host for the work before the latest end() outside of captures.
  cudaError_t synchronize() const { return direct_.exists ? cudaEventSynchronize(direct_.event.get()) : cudaSuccess; }

 private:
  struct Latest {
    EventHandle event;
    cudaStream_t stream = nullptr;
    unsigned long long capture = 0;
    bool exists = false;
  };
  Latest direct_, captured_;  ///< captured_: of the latest capture
  Latest* current_ = nullptr;
};

}  // namespace seqpar
