#include "comm/stream.h"

#include "base/thread.h"

namespace seqpar {

HostStream::HostStream(unsigned polls)
    : queue_(std::make_shared<StreamQueue>(errors_, polls)),
      worker_(startThread("a stream", [queue = queue_.get()] { queue->serve(); })) {}

void HostStream::close() {
  if (!worker_.joinable()) return;
  queue_->stop();
  worker_.join();
}

void HostStream::synchronize() {
  wait();
  errors_.report();
}

std::shared_ptr<HostEvent::Point> HostEvent::point() const {
  const std::lock_guard lock(mutex_);
  return point_;
}

void HostEvent::record(HostStream& stream) {
  auto point = std::make_shared<Point>();
  point->queue = stream.queue_;
  point->item = stream.queue_->enqueue([point, &stream] {
    point->failures = stream.unreported();
    point->when = std::chrono::steady_clock::now();
  });
  const std::lock_guard lock(mutex_);
  point_ = std::move(point);
}

void HostEvent::makeWait(HostStream& stream) const {
  if (auto recorded = point()) {
    stream.enqueue([recorded = std::move(recorded), &stream] {
      recorded->wait();
      stream.inherit(recorded->failures);
    });
  }
}

void HostEvent::synchronize() const {
  if (const auto recorded = point()) {
    recorded->wait();
    throwFirst(recorded->failures);
  }
}

void HostEvent::check() const {
  const auto recorded = point();
  if (recorded && recorded->passed()) throwFirst(recorded->failures);
}

bool HostEvent::passed() const {
  const auto recorded = point();
  return !recorded || recorded->queue->query(recorded->item);
}

double HostEvent::millisecondsTo(const HostEvent& end) const {
  const auto from = point();
  const auto to = end.point();
  if (!from || !to) fail(seqparInvalidUsage, "an event was never recorded; expected a record of both");
  if (!from->passed() || !to->passed()) fail(seqparInProgress, "a record has not passed yet");
  return std::chrono::duration<double, std::milli>(to->when - from->when).count();
}

}  // namespace seqpar
