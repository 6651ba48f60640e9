// The transfers enqueued on a stream: which are done, and which exceed the timeout.
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

/// Thread safe.
class TransferLog {
 public:
  /// A value that a word must reach before a transfer can complete.
  struct Need {
    std::size_t word = 0;
    std::uint32_t value = 0;
  };
  struct Transfer {
    EventHandle before = makeEvent();  ///< recorded where the transfer may start
    EventHandle after = makeEvent();   ///< recorded after the transfer
    std::vector<Need> needs;
    std::optional<std::chrono::steady_clock::time_point> started;
  };

  /// Returns a transfer that is not in the log, with events to record: a completed one, or a new one.
  std::unique_ptr<Transfer> take();
  /// Adds a transfer with recorded events, later in the stream than those of earlier transfers.
  void add(std::unique_ptr<Transfer> transfer);

  /// True if all transfers are done. Their events stay unchanged until take().
  bool idle();
  /// The needs of the oldest transfer if it could have started `limit` ago and is not done; otherwise empty.
  std::vector<Need> overdue(std::chrono::nanoseconds limit);

 private:
  void retire();

  std::mutex mutex_;
  std::deque<std::unique_ptr<Transfer>> underWay_;
  std::vector<std::unique_ptr<Transfer>> done_;
};

}  // namespace seqpar
