// The transfers that a stream has been given: which are done, and which takes too long.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/cuda.h"

namespace seqpar {

/// Any thread may call any method.
class TransferLog {
 public:
  /// A value that a word must reach before a transfer can be done.
  struct Need {
    std::size_t word = 0;
    std::uint32_t value = 0;
  };
  struct Transfer {
    EventHandle before = makeEvent();  ///< recorded where it may begin
    EventHandle after = makeEvent();   ///< recorded behind it
    std::vector<Need> needs;
    std::optional<std::chrono::steady_clock::time_point> begun;
  };

  /// A transfer that is not in the log, with events to record; of those that are done, or new.
  std::unique_ptr<Transfer> take();
  /// Its events have been recorded, later in the stream than those of the transfers before.
  void add(std::unique_ptr<Transfer> transfer);

  /// True if all transfers are done. Their events stay as they are until take().
  bool idle();
  /// What the oldest transfer needs if it could have begun `limit` ago and is not done; else empty.
  std::vector<Need> overdue(std::chrono::nanoseconds limit);

 private:
  void retire();

  std::mutex mutex_;
  std::deque<std::unique_ptr<Transfer>> underWay_;
  std::vector<std::unique_ptr<Transfer>> done_;
};

}  // namespace seqpar
