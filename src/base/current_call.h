// The public function that a thread is in, for texts that lower layers write.
#pragma once

namespace seqpar {

class CurrentCall {
 public:
  /// `name` is a literal. The outermost call counts.
  explicit CurrentCall(const char* name) noexcept : outermost_(*place() == '\0') {
    if (outermost_) place() = name;
  }
  CurrentCall(const CurrentCall&) = delete;
  CurrentCall& operator=(const CurrentCall&) = delete;
  ~CurrentCall() {
    if (outermost_) place() = "";
  }

  /// Of the calling thread; "" if it is in none.
  static const char* name() noexcept { return place(); }

 private:
  static const char*& place() noexcept {
    static thread_local const char* current = "";
    return current;
  }

  bool outermost_;
};

}  // namespace seqpar
