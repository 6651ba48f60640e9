// A point in time after which a wait times out.
#pragma once

#include <algorithm>
#include <chrono>

namespace seqpar {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Never passes.
  Deadline() = default;

  /// Passes `timeout` from now; never, if `timeout` is 0.
  explicit Deadline(std::chrono::milliseconds timeout)
      : at_(timeout.count() == 0 ? Clock::time_point::max() : Clock::now() + timeout) {}

  bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }

  /// The remaining time, at most `most`; 0 if it has passed. Suitable for poll().
  std::chrono::milliseconds left(std::chrono::milliseconds most) const {
    if (at_ == Clock::time_point::max()) return most;
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now());
    return std::clamp(rest, std::chrono::milliseconds(0), most);
  }

 private:
  Clock::time_point at_ = Clock::time_point::max();
};

}  // namespace seqpar
