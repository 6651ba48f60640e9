#include "comm/stream.h"

#include <sched.h>

#include <cstdint>
#include <utility>

#include "base/memory.h"
#include "base/thread.h"

namespace seqpar {

HostStream::HostStream(unsigned awake) : thread_(startThread("a stream", [this, awake] { serve(awake); })) {}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    pushed_.store(SIZE_MAX, std::memory_order_release);
  }
  wake_.notify_one();
  thread_.join();
}

void HostStream::enqueue(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    ++enqueued_;
    pushed_.store(enqueued_, std::memory_order_release);
  }
  wake_.notify_one();
}

void HostStream::synchronize() {
  std::unique_lock lock(mutex_);
  const size_t target = enqueued_;
  done_.wait(lock, [&] { return finished_ >= target; });
  if (error_) {
    const auto error = std::exchange(error_, nullptr);
    throw Error(*error);
  }
}

bool HostStream::idle() const {
  const std::lock_guard lock(mutex_);
  return finished_ == enqueued_;
}

void HostStream::keep(seqparResult_t result, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::make_unique<Error>(result, text);
}

void HostStream::serve(unsigned awake) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (queue_.empty() && awake > 0) {
      const size_t seen = enqueued_;
      lock.unlock();
      for (unsigned look = 0; look < awake && pushed_.load(std::memory_order_acquire) == seen; ++look) sched_yield();
      lock.lock();
    }
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    auto work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    try {
      work();
    } catch (const Error& error) {
      keep(error.result(), error.what());
    } catch (const std::bad_alloc&) {
      keep(seqparSystemError, kNoMemory);
    } catch (const std::exception& error) {
      keep(seqparInternalError, error.what());
    }
    work = nullptr;  // what it captured is freed before it counts as done
    lock.lock();
    ++finished_;
    done_.notify_all();
  }
}

void HostEvent::Point::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return passed; });
}

std::shared_ptr<HostEvent::Point> HostEvent::point() const {
  const std::lock_guard lock(mutex_);
  return point_;
}

void HostEvent::record(HostStream& stream) {
  auto point = std::make_shared<Point>();
  {
    const std::lock_guard lock(mutex_);
    point_ = point;
  }
  stream.enqueue([point] {
    const std::lock_guard lock(point->mutex);
    point->passed = true;
    point->when = std::chrono::steady_clock::now();
    point->changed.notify_all();
  });
}

void HostEvent::makeWait(HostStream& stream) const {
  if (auto recorded = point()) stream.enqueue([recorded] { recorded->wait(); });
}

void HostEvent::synchronize() const {
  if (auto recorded = point()) recorded->wait();
}

bool HostEvent::passed() const {
  const auto recorded = point();
  if (!recorded) return true;
  const std::lock_guard lock(recorded->mutex);
  return recorded->passed;
}

double HostEvent::millisecondsTo(const HostEvent& end) const {
  const auto from = point();
  const auto to = end.point();
  if (!from || !to) fail(seqparInvalidUsage, "an event was never recorded; expected a record of both");
  if (!passed() || !end.passed()) fail(seqparInProgress, "a record has not passed yet");
  return std::chrono::duration<double, std::milli>(to->when - from->when).count();
}

}  // namespace seqpar
