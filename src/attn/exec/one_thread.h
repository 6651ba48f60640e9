// Refuses a second thread: two calls of a plan at a time would use the same workspace.
#pragma once

#include <atomic>

#include "base/error.h"

namespace seqpar::attn {

class OneThread {
 public:
  /// Throws Error, which names `call`, while another one exists for `busy`.
  OneThread(std::atomic_flag& busy, const char* call) : busy_(busy) {
    if (busy_.test_and_set(std::memory_order_acquire)) {
      fail(seqparInvalidUsage, call, ": another thread is inside a call of this plan, expected one thread at a time");
    }
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { busy_.clear(std::memory_order_release); }

 private:
  std::atomic_flag& busy_;
};

}  // namespace seqpar::attn
