// Decides when to log that a wait has lasted long.
#pragma once

#include <chrono>

namespace seqpar {

class Reminder {
 public:
  using Clock = std::chrono::steady_clock;

  /// The start time of the wait.
  explicit Reminder(Clock::time_point begin) : begin_(begin) {}

  /// True once each after 3 s, 30 s, 300 s, ...
  bool due(Clock::time_point now) {
    if (now - begin_ < next_) return false;
    next_ *= 10;
    return true;
  }

  /// How long the wait has lasted so far.
  std::chrono::seconds lasted(Clock::time_point now) const {
    return std::chrono::duration_cast<std::chrono::seconds>(now - begin_);
  }

 private:
  Clock::time_point begin_;
  std::chrono::seconds next_{3};
};

}  // namespace seqpar
