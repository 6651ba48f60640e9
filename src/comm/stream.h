// Host streams and events: in-order queues of work, with one thread per stream.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/stream_errors.h"
#include "comm/stream_queue.h"

namespace seqpar {

class HostStream {
 public:
  /// `polls`: see StreamQueue.
  explicit HostStream(unsigned polls = 0);
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;
  ~HostStream() { close(); }

  /// Runs all enqueued work, then ends the thread. The last reference may then be dropped by the stream's own work.
  void close();
  /// True in the stream's own work.
  bool runsHere() const { return queue_->runsHere(); }

  /// Enqueues work. An Error of the work is stored for synchronize(), and for streams that wait for this one.
  void enqueue(Task&& work) { queue_->enqueue(std::move(work)); }
  /// Runs or awaits everything enqueued so far; throws the first Error of work since the last call.
  void synchronize();
  /// Runs or awaits everything enqueued so far; keeps the Errors.
  void wait() { queue_->wait(queue_->last()); }
  bool idle() const { return queue_->query(queue_->last()); }

  /// Records an error of the running work. Later operations of communicators on this stream send nothing (spoiled()).
  void fail(seqparResult_t result, const std::string& text) { errors_.keep(result, text, true); }
  /// The errors that no synchronize() has thrown yet.
  StreamFailures unreported() const { return errors_.unreported(); }
  /// Takes over errors of work that this stream has waited for, and drops those that another stream has thrown.
  void inherit(const StreamFailures& failures) { errors_.inherit(failures); }
  /// An error recorded by fail(), here or on a stream that this one has waited for, since synchronize(); or null.
  std::shared_ptr<const StreamFailure> spoiled() const { return errors_.spoiled(); }

 private:
  friend class HostEvent;

  StreamErrors errors_;
  std::shared_ptr<StreamQueue> queue_;  ///< shared with the events
  std::thread worker_;
};

/// A recorded point of a stream, with the stream's pending errors at that point.
class HostEvent {
 public:
  void record(HostStream& stream);
  /// Orders `stream` after the latest record, and passes on its errors.
  void makeWait(HostStream& stream) const;
  /// Waits for the latest record, or runs the work before it. Throws the record's first error.
  void synchronize() const;
  /// True if the latest record has passed or there is none.
  bool passed() const;
  /// Throws the first error of the latest record, if that has passed.
  void check() const;
  /// Milliseconds from this event's record to `end`'s. Throws InvalidUsage or InProgress.
  double millisecondsTo(const HostEvent& end) const;

 private:
  struct Point {
    std::shared_ptr<StreamQueue> queue;
    size_t item = 0;  ///< the queue's item that sets the members below
    std::chrono::steady_clock::time_point when;
    StreamFailures failures;
    bool passed() const { return queue->finished(item); }
    void wait() const {
      if (!passed()) queue->wait(item);
    }
  };
  std::shared_ptr<Point> point() const;

  mutable std::mutex mutex_;
  std::shared_ptr<Point> point_;
};

}  // namespace seqpar
