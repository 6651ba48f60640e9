// A check of the contract that one thread at a time calls a communicator: ranks may run the calls of two threads in
// different orders.
#pragma once

#include <atomic>

#include "base/health.h"
#include "base/memory.h"

namespace seqpar {

/// The operation that a thread issues or waits for.
class OneCaller {
 public:
  /// RAII scope of an operation. Ends the communicator with an InvalidUsage if another thread is inside one.
  class Scope {
   public:
    /// `caller` null: no check. `call` is a literal.
    Scope(OneCaller* caller, const char* call, Health& health) : caller_(caller) {
      const char* other = nullptr;
      if (caller == nullptr || caller->call_.compare_exchange_strong(other, call)) return;
      health.fail(seqparInvalidUsage, FixedText{call, ": another thread is inside ", other,
                                                " with this communicator; expected one thread at a time"});
      throw Error(seqparInvalidUsage, health.text());
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (caller_ != nullptr) caller_->call_.store(nullptr);
    }

   private:
    OneCaller* caller_;
  };

 private:
  std::atomic<const char*> call_{nullptr};
};

}  // namespace seqpar
