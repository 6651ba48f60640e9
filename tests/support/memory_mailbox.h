// A mailbox between threads of one process, for tests: it keeps Mailbox's contract to the letter and throws
// std::logic_error when its user does not.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "transport/mailbox.h"

namespace seqpar::test {

struct MemoryMailboxOptions {
  size_t maxMessage = 1 << 20;
  size_t window = 4 << 20;
  /// True: a sender waits when its unread messages, including the new one, would exceed the window, so that an
  /// algorithm that breaks the deadlock rule blocks. False: it never waits.
  bool strict = true;
  bool messages = false;  ///< prefersMessages() of two of three payloads
  bool mapped = false;    ///< two of three payloads are in memory that the peers map
  /// Every wait gives up after this and fails all ranks.
  std::chrono::seconds timeout{600};
};

/// The lanes between `size` ranks.
class MemoryLanes {
 public:
  MemoryLanes(int size, const MemoryMailboxOptions& options);
  ~MemoryLanes();

  /// Calls body(mailbox) for every rank, each on a separate thread, inside an operation. If one throws, all waits
  /// end, and the first exception is rethrown. std::logic_error if messages are left unread.
  void run(const std::function<void(Mailbox&)>& body);

  /// Messages that `rank` has published so far; one to several ranks counts once.
  size_t messagesFrom(int rank) const;
  /// Messages on the lane so far.
  size_t messagesOn(int from, int to) const;

 private:
  struct Message;
  struct Queue;
  class Box;
  friend class Box;

  void stop(const std::string& why);
  void waitFor(std::unique_lock<std::mutex>& lock, const std::string& what, const std::function<bool()>& done);
  Queue& queue(int from, int to);
  const Queue& queue(int from, int to) const;

  int size_;
  MemoryMailboxOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string stopped_;  ///< why, or ""
  std::vector<Queue> lanes_;
  std::vector<std::unique_ptr<Box>> boxes_;
};

}  // namespace seqpar::test
