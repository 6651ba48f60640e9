// The queue of a host stream: items run one at a time and in order, on the stream's worker or on a thread that waits.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "base/task.h"
#include "comm/stream_errors.h"

namespace seqpar {

/// A thread that waits for an item runs it, with all items before it. If another thread runs the queue already, it
/// waits for that thread; the worker leaves the queue to a waiting thread after the current item, so that the two do
/// not compete for a processor. The worker runs items whose owner computes, that is, neither enqueues nor waits soon. A
/// queue whose owner has waited soon after each of the last enqueues ("prompt") leaves its items to the owner:
/// enqueue() makes no system call, and the worker looks at the queue only after naps, which are at most as long as the
/// queue has been prompt.
class StreamQueue {
 public:
  /// `polls`: how often an idle worker looks for work, yielding the processor, before it sleeps; 0: the default.
  /// `errors` must outlive the last item.
  StreamQueue(StreamErrors& errors, unsigned polls);
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;
  ~StreamQueue();

  /// Appends work and returns its number, from 1. An exception of the work is added to the stream's errors. Throws
  /// after stop() and without memory.
  size_t enqueue(Task&& work);
  /// The number of the latest item.
  size_t last() const { return enqueued_.load(std::memory_order_acquire); }
  bool finished(size_t item) const { return finished_.load(std::memory_order_acquire) >= item; }
  /// Runs items on this thread, or waits for the thread that runs them, until finished(item).
  void wait(size_t item);
  /// finished(item). If false, the worker starts on the queue without a nap.
  bool query(size_t item);

  /// True in an item that this thread runs.
  bool runsHere() const;
  /// True if a thread waits while another one runs items.
  bool awaited() const;

  /// The worker's loop: returns after stop(), when all items are finished.
  void serve();
  void stop();

  /// For a thread that blocks until another thread's items have run: the workers of this process start on the items of
  /// prompt queues.
  static void hurryAll();
  /// Declares that the ranks use all processors: idle workers sleep at once, and waits poll briefly.
  static void setCrowded() noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;
  enum class Worker { Busy, Naps, Sleeps };

  /// Waits in a row, each soon after its enqueue, from which a queue is prompt.
  static constexpr unsigned kPromptWaits = 4;
  static constexpr std::chrono::microseconds kShortestNap{50}, kLongestNap{1000};

  bool prompt() const { return promptWaits_ >= kPromptWaits; }
  bool ready() const { return !queue_.empty() && !running_; }
  bool fresh() const;
  void noteWait();
  /// Runs items until finished(item) or the queue is empty; if it `yields`, only until a thread waits.
  void run(Lock& lock, size_t item, bool yields);
  void runFirst(Lock& lock);
  void keepError(seqparResult_t result, const char* text) noexcept;
  void hurry();
  void wakeWorker();
  /// Of the idle worker.
  void poll(Lock& lock);
  void rest(Lock& lock);

  StreamErrors& errors_;
  const unsigned polls_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  TaskQueue queue_;
  std::atomic<size_t> enqueued_{0}, finished_{0};
  size_t awaited_ = SIZE_MAX;         ///< the first item that a sleeping thread waits for
  std::atomic<bool> running_{false};  ///< a thread runs items
  std::thread::id runner_;            ///< that thread
  unsigned waiters_ = 0;              ///< threads that wait for the thread that runs items
  std::atomic<bool> stopping_{false};
  Worker worker_ = Worker::Busy;
  bool hurried_ = false;  ///< the worker must not leave the items to the owner
  unsigned promptWaits_ = 0;
  int64_t since_ = 0, latest_ = 0;  ///< ticksNow() of the first (0: none) and the latest enqueue since the latest wait
  std::chrono::microseconds nap_ = kShortestNap;
  unsigned idleNaps_ = 0;  ///< since the latest enqueue
  size_t seen_ = 0;        ///< enqueued_ at the latest nap
};

}  // namespace seqpar
