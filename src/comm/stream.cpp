#include "comm/stream.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/memory.h"
#include "base/thread.h"

namespace seqpar {
namespace {

bool isReported(const std::shared_ptr<StreamFailure>& failure) {
  return failure->reported.load();
}

void throwFirst(const StreamFailures& failures) {
  if (!failures.empty()) throw Error(failures.front()->error);
}

}  // namespace

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
  const StreamFailures failures = std::exchange(failures_, {});
  for (const auto& failure : failures) failure->reported.store(true);
  throwFirst(failures);
}

bool HostStream::idle() const {
  const std::lock_guard lock(mutex_);
  return finished_ == enqueued_;
}

void HostStream::keep(seqparResult_t result, const std::string& text, bool spoils) {
  const std::lock_guard lock(mutex_);
  std::erase_if(failures_, isReported);
  const bool known =
      spoils ? std::any_of(failures_.begin(), failures_.end(), [](auto& f) { return f->spoils; }) : !failures_.empty();
  if (!known) failures_.push_back(std::make_shared<StreamFailure>(Error(result, text), spoils));
}

StreamFailures HostStream::untold() const {
  const std::lock_guard lock(mutex_);
  StreamFailures all = failures_;
  std::erase_if(all, isReported);
  return all;
}

void HostStream::inherit(const StreamFailures& failures) {
  const std::lock_guard lock(mutex_);
  std::erase_if(failures_, isReported);
  for (const auto& failure : failures) {
    if (std::find(failures_.begin(), failures_.end(), failure) == failures_.end()) failures_.push_back(failure);
  }
}

std::shared_ptr<const StreamFailure> HostStream::spoiled() const {
  const std::lock_guard lock(mutex_);
  for (const auto& failure : failures_) {
    if (failure->spoils) return failure;
  }
  return nullptr;
}

void HostStream::serve(unsigned awake) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (queue_.empty() && awake > 0) {
      const size_t seen = enqueued_;
      lock.unlock();
      for (unsigned poll = 0; poll < awake && pushed_.load(std::memory_order_acquire) == seen; ++poll) sched_yield();
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
    work = nullptr;  // frees captured objects before the work counts as done
    lock.lock();
    ++finished_;
    done_.notify_all();
  }
}

void HostEvent::Point::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return passed; });
}

void HostEvent::Point::check() const {
  const std::lock_guard lock(mutex);
  throwFirst(failures);
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
  stream.enqueue([point, &stream] {
    const std::lock_guard lock(point->mutex);
    point->failures = stream.untold();
    point->passed = true;
    point->when = std::chrono::steady_clock::now();
    point->changed.notify_all();
  });
}

void HostEvent::makeWait(HostStream& stream) const {
  if (auto recorded = point()) {
    stream.enqueue([recorded, &stream] {
      recorded->wait();
      stream.inherit(recorded->failures);
    });
  }
}

void HostEvent::synchronize() const {
  if (auto recorded = point()) {
    recorded->wait();
    recorded->check();
  }
}

void HostEvent::check() const {
  if (auto recorded = point()) recorded->check();
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
