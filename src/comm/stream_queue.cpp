#include "comm/stream_queue.h"

#include <sched.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/current_call.h"
#include "base/memory.h"
#include "base/process.h"
#include "base/ticks.h"
#include "comm/call_log.h"

namespace seqpar {
namespace {

// A wait at most this long after the latest enqueue leaves no computation to overlap. 20 us if a tick is a nanosecond;
// with the counter of a processor, 4 to 10 us.
constexpr int64_t kSoonTicks = 20000;
// Enqueues without a wait for this long are no longer followed by a wait soon.
constexpr int64_t kBurstTicks = 400000;
// Naps without an enqueue before the worker sleeps.
constexpr unsigned kIdleNaps = 50;
// Each costs about 0.5 us. A thread that sleeps at once is woken on its waker's processor, and both then alternate
// there; if both stay awake for a millisecond, the scheduler moves one of them.
constexpr unsigned kWaiterPolls = 4000, kWorkerPolls = 200, kCrowdedPolls = 100;

std::atomic<bool> crowded{false};

struct Queues {
  std::mutex mutex;
  std::vector<StreamQueue*> all;
};

Queues& queues() {
  return ofProcess<Queues>();
}

}  // namespace

StreamQueue::StreamQueue(StreamErrors& errors, unsigned polls) : errors_(errors), polls_(polls) {
  const std::lock_guard lock(queues().mutex);
  queues().all.push_back(this);
}

StreamQueue::~StreamQueue() {
  const std::lock_guard lock(queues().mutex);
  std::erase(queues().all, this);
}

void StreamQueue::setCrowded() noexcept {
  crowded.store(true, std::memory_order_relaxed);
}

void StreamQueue::hurryAll() {
  const std::lock_guard all(queues().mutex);
  for (StreamQueue* queue : queues().all) {
    const std::lock_guard lock(queue->mutex_);
    queue->hurry();
  }
}

size_t StreamQueue::enqueue(Task&& work) {
  const std::lock_guard lock(mutex_);
  // The worker may have ended: the work would never run.
  if (stopping_) fail(seqparInvalidArgument, "the stream is being destroyed, expected a stream in use");
  queue_.push(std::move(work));
  const size_t item = enqueued_.load(std::memory_order_relaxed) + 1;
  enqueued_.store(item, std::memory_order_release);
  latest_ = CallScope::began();
  if (since_ == 0) since_ = latest_;
  if (!running_ && (worker_ == Worker::Sleeps || !prompt())) wakeWorker();
  return item;
}

void StreamQueue::wait(size_t item) {
  Lock lock(mutex_);
  noteWait();
  while (!finished(item)) {
    if (!running_) {
      run(lock, item, false);
      continue;
    }
    ++waiters_;
    lock.unlock();
    const unsigned polls = crowded.load(std::memory_order_relaxed) ? kCrowdedPolls : kWaiterPolls;
    for (unsigned poll = 0; poll < polls && !finished(item) && running_; ++poll) sched_yield();
    lock.lock();
    while (!finished(item) && running_) {
      awaited_ = std::min(awaited_, item);
      done_.wait(lock);
    }
    --waiters_;
  }
}

bool StreamQueue::query(size_t item) {
  if (finished(item)) return true;
  const std::lock_guard lock(mutex_);
  promptWaits_ = 0;
  hurry();
  return false;
}

bool StreamQueue::runsHere() const {
  const std::lock_guard lock(mutex_);
  return running_ && runner_ == std::this_thread::get_id();
}

bool StreamQueue::awaited() const {
  const std::lock_guard lock(mutex_);
  return waiters_ > 0;
}

void StreamQueue::stop() {
  const std::lock_guard lock(mutex_);
  stopping_.store(true);
  wakeWorker();
}

bool StreamQueue::fresh() const {
  if (since_ == 0) return false;
  const int64_t now = ticksNow();
  return now - latest_ < kSoonTicks && now - since_ < kBurstTicks;
}

void StreamQueue::noteWait() {
  if (since_ == 0) return;
  promptWaits_ = fresh() ? std::min(promptWaits_ + 1, kPromptWaits) : 0;
  since_ = 0;
}

void StreamQueue::run(Lock& lock, size_t item, bool yields) {
  running_ = true;
  runner_ = std::this_thread::get_id();
  while (!queue_.empty() && !finished(item) && !(yields && waiters_ > 0)) runFirst(lock);
  running_ = false;
  hurried_ = !queue_.empty();
  if (hurried_ || stopping_) wakeWorker();
  if (std::exchange(awaited_, SIZE_MAX) != SIZE_MAX) done_.notify_all();
}

void StreamQueue::runFirst(Lock& lock) {
  Task& work = queue_.claim();
  lock.unlock();
  {
    const CurrentCall::Outside outside;  // the work belongs to the call that enqueued it
    try {
      work();
    } catch (const Error& error) {
      keepError(error.result(), error.what());
    } catch (const std::bad_alloc&) {
      keepError(seqparSystemError, kNoMemory);
    } catch (const std::exception& error) {
      keepError(seqparInternalError, error.what());
    }
    work.reset();  // frees captured objects before the work counts as done
  }
  lock.lock();
  queue_.release();
  const size_t done = finished_.load(std::memory_order_relaxed) + 1;
  finished_.store(done, std::memory_order_release);
  if (done < awaited_) return;
  awaited_ = SIZE_MAX;
  done_.notify_all();
}

void StreamQueue::keepError(seqparResult_t result, const char* text) noexcept {
  try {
    errors_.keep(result, text, false);
  } catch (const std::bad_alloc&) {
    errors_.keepNoMemory();
  }
}

void StreamQueue::hurry() {
  if (!ready()) return;
  hurried_ = true;
  wakeWorker();
}

void StreamQueue::wakeWorker() {
  if (std::exchange(worker_, Worker::Busy) != Worker::Busy) wake_.notify_one();
}

void StreamQueue::serve() {
  Lock lock(mutex_);
  while (true) {
    if (ready() && waiters_ == 0 && (hurried_ || stopping_ || !fresh())) {
      promptWaits_ = 0;  // the owner computes, or no thread waits
      run(lock, SIZE_MAX, true);
      if (queue_.empty()) poll(lock);
    } else if (ready() && waiters_ == 0 && !prompt()) {
      lock.unlock();
      sched_yield();  // a wake-up preempts the owner, which may be about to wait
      lock.lock();
    } else if (stopping_ && queue_.empty() && !running_) {
      return;
    } else {
      rest(lock);
    }
  }
}

void StreamQueue::poll(Lock& lock) {
  const unsigned usual = crowded.load(std::memory_order_relaxed) ? 0 : kWorkerPolls;
  const size_t seen = last();
  lock.unlock();
  for (unsigned look = polls_ > 0 ? polls_ : usual; look > 0 && last() == seen && !stopping_; --look) sched_yield();
  lock.lock();
}

void StreamQueue::rest(Lock& lock) {
  idleNaps_ = last() == seen_ ? idleNaps_ + 1 : 0;
  seen_ = last();
  const auto woken = [this] { return worker_ == Worker::Busy; };
  if (ready() || (prompt() && idleNaps_ < kIdleNaps)) {
    worker_ = Worker::Naps;
    wake_.wait_for(lock, nap_, woken);
    nap_ = std::min(2 * nap_, kLongestNap);
  } else {
    worker_ = Worker::Sleeps;
    wake_.wait(lock, woken);
    nap_ = kShortestNap;
  }
  worker_ = Worker::Busy;
}

}  // namespace seqpar
