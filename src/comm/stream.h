// Host streams and events: in-order queues of work, with one thread per stream.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace seqpar {

/// An error of a stream's work. Streams that wait for that work share it.
struct StreamFailure {
  StreamFailure(Error cause, bool spoilsLater) : error(std::move(cause)), spoils(spoilsLater) {}

  Error error;
  bool spoils;  ///< later work on the stream uses invalid data
  std::atomic<bool> reported{false};
};

using StreamFailures = std::vector<std::shared_ptr<StreamFailure>>;

class HostStream {
 public:
  /// Between items of work, the thread polls for more `awake` times, yielding the processor, and then sleeps.
  explicit HostStream(unsigned awake = 0);
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;
  /// Runs all enqueued work, then ends the thread.
  ~HostStream();

  /// Enqueues work. An Error of the work is stored for synchronize(), and for streams that wait for this one.
  void enqueue(std::function<void()> work);
  /// Waits for everything enqueued so far; throws the first Error of work since the last call.
  void synchronize();
  bool idle() const;

  /// Records an error of the running work. Later operations of communicators on this stream send nothing (spoiled()).
  void fail(seqparResult_t result, const std::string& text) { keep(result, text, true); }
  /// The errors that no synchronize() has thrown yet.
  StreamFailures untold() const;
  /// Takes over errors of work that this stream has waited for, and drops those that another stream has thrown.
  void inherit(const StreamFailures& failures);
  /// An error recorded by fail(), here or on a stream that this one has waited for, since synchronize(); or null.
  std::shared_ptr<const StreamFailure> spoiled() const;

 private:
  void serve(unsigned awake);
  void keep(seqparResult_t result, const std::string& text, bool spoils = false);

  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::function<void()>> queue_;
  size_t enqueued_ = 0, finished_ = 0;
  bool stopping_ = false;
  std::atomic<size_t> pushed_{0};  ///< number of enqueued items, for polling without the lock
  StreamFailures failures_;
  std::thread thread_;
};

/// A recorded point of a stream, with the stream's pending errors at that point.
class HostEvent {
 public:
  void record(HostStream& stream);
  /// Orders `stream` after the latest record, and passes on its errors.
  void makeWait(HostStream& stream) const;
  /// Waits for the latest record. Throws its first error.
  void synchronize() const;
  /// True if the latest record has passed or there is none.
  bool passed() const;
  /// Throws the first error of the latest record, if that has passed.
  void check() const;
  /// Milliseconds from this event's record to `end`'s. Throws InvalidUsage or InProgress.
  double millisecondsTo(const HostEvent& end) const;

 private:
  struct Point {
    mutable std::mutex mutex;
    std::condition_variable changed;
    bool passed = false;
    std::chrono::steady_clock::time_point when;
    StreamFailures failures;  ///< set when the record has passed
    void wait();
    void check() const;
  };
  std::shared_ptr<Point> point() const;

  mutable std::mutex mutex_;
  std::shared_ptr<Point> point_;
};

}  // namespace seqpar
