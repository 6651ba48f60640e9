// Whether a communicator still works: one object per communicator, shared by every part that waits or detects failures.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/error.h"

namespace seqpar {

/// Set once, by the part that notices the failure first; read by every wait. After it is set, nothing may be published
/// to peers.
class Health {
 public:
  Health();

  using Hook = std::function<void(seqparResult_t, const std::string&)>;

  /// True while the communicator works.
  bool ok() const noexcept { return result_.load(std::memory_order_acquire) == seqparSuccess; }

  /// The first failure's result, or Success.
  seqparResult_t result() const noexcept { return result_.load(std::memory_order_acquire); }

  /// The first failure's text, or "".
  std::string text() const;

  /// Throws the failure, if there is one.
  void check() const {
    if (!ok()) raise();
  }

  /// Records a failure and runs the hook; later failures are ignored. Returns true if this failure was the first. Also
  /// works without memory; a long text is then cut off.
  bool fail(seqparResult_t result, std::string_view text) noexcept;

  /// Called once, in the thread that reports the first failure, to wake sleeping threads and notify the other ranks.
  /// Set it before use.
  void onFailure(Hook hook);

  /// Waits up to a second, or up to `limit`, for a failure, which may be about to name the rank that is lost.
  void awaitFailure(std::chrono::milliseconds limit = std::chrono::seconds(1)) const;

 private:
  [[noreturn]] void raise() const;

  std::atomic<seqparResult_t> result_{seqparSuccess};
  mutable std::mutex mutex_;
  std::string text_;
  std::shared_ptr<const Hook> hook_;  ///< shared, as a copy may need memory
};

}  // namespace seqpar
