// The public function that a thread is in, for texts of lower layers.
#pragma once

#include "base/thread_variable.h"

namespace seqpar {

class CurrentCall {
 public:
  /// `name` is a literal. Nested calls keep the outermost name.
  explicit CurrentCall(const char* name) noexcept : outermost_(*current_ == '\0') {
    if (outermost_) current_ = name;
  }
  CurrentCall(const CurrentCall&) = delete;
  CurrentCall& operator=(const CurrentCall&) = delete;
  ~CurrentCall() {
    if (outermost_) current_ = "";
  }

  /// While it exists, the thread counts as outside of a call: for work of other calls.
  class Outside {
   public:
    Outside() noexcept : name_(current_) { current_ = ""; }
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
    ~Outside() { current_ = name_; }

   private:
    const char* name_;
  };

  /// The calling thread's; "" outside of a call.
  static const char* name() noexcept { return current_; }

 private:
  SEQPAR_THREAD_VARIABLE static inline thread_local constinit const char* current_ = "";

  bool outermost_;
};

}  // namespace seqpar
