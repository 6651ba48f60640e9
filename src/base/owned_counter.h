// A counter for all threads that costs no atomic addition while only one thread counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/asymmetric_fence.h"
#include "base/thread_variable.h"

namespace seqpar {

/// The first thread that counts owns the counter until another one counts; from then on additions are atomic.
class OwnedCounter {
 public:
  /// Adds 1; returns the value before, which no other call returns.
  uint64_t next() noexcept {
    // The owner stores busy_, then loads owner_; endOwnership() stores owner_, then loads busy_.
    if (owner_.load(std::memory_order_relaxed) == &mark_) {
      busy_.store(true, std::memory_order_relaxed);
      lightFence();
      const bool owned = owner_.load(std::memory_order_relaxed) == &mark_;
      const uint64_t value = value_.load(std::memory_order_relaxed);
      if (owned) value_.store(value + 1, std::memory_order_relaxed);
      busy_.store(false, std::memory_order_release);
      if (owned) return value;
    }
    return nextOfAnother();
  }
  /// Takes back the latest call of next(), which returned `value`. False if there was a later call.
  bool undo(uint64_t value) noexcept;
  /// The number of calls of next() that this thread knows of.
  uint64_t load() const noexcept { return value_.load(); }

 private:
  uint64_t nextOfAnother() noexcept;
  void endOwnership() noexcept;

  /// Its address is a thread's identity.
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit char mark_ = 0;
  /// Marks of no thread: ownership ends; it has ended.
  static inline char ending_, shared_;

  std::atomic<const char*> owner_{nullptr};
  std::atomic<bool> busy_{false};
  std::atomic<uint64_t> value_{0};
  std::mutex mutex_;  ///< of endOwnership()
};

}  // namespace seqpar
