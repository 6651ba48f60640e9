// Host streams and events: in-order queues of work, each with a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace seqpar {

class HostStream {
 public:
  /// Between pieces of work its thread gives the processor away at `awake` looks for the next, and then sleeps.
  explicit HostStream(unsigned awake = 0);
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;
  /// Runs what is enqueued, then ends the thread.
  ~HostStream();

  /// Enqueues work. An Error that it throws is kept for synchronize().
  void enqueue(std::function<void()> work);
  /// Waits for everything enqueued so far; throws the first Error of work since the last call.
  void synchronize();
  bool idle() const;

 private:
  void serve(unsigned awake);
  void keep(seqparResult_t result, const std::string& text);

  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::function<void()>> queue_;
  size_t enqueued_ = 0, finished_ = 0;
  bool stopping_ = false;
  std::atomic<size_t> pushed_{0};  ///< pieces of work so far, for looks without the lock
  std::unique_ptr<Error> error_;
  std::thread thread_;
};

/// The point of a stream that was recorded last.
class HostEvent {
 public:
  void record(HostStream& stream);
  /// Makes `stream` wait for the latest record.
  void makeWait(HostStream& stream) const;
  void synchronize() const;
  /// True if the latest record has passed or there is none.
  bool passed() const;
  /// Milliseconds from this event's record to `end`'s. Throws InvalidUsage or InProgress.
  double millisecondsTo(const HostEvent& end) const;

 private:
  struct Point {
    mutable std::mutex mutex;
    std::condition_variable changed;
    bool passed = false;
    std::chrono::steady_clock::time_point when;
    void wait();
  };
  std::shared_ptr<Point> point() const;

  mutable std::mutex mutex_;
  std::shared_ptr<Point> point_;
};

}  // namespace seqpar
