#include "transport/outbox.h"

#include <algorithm>

#include "transport/segment.h"

namespace seqpar {
namespace {

size_t wholeLines(size_t bytes) {
  return std::max<size_t>((bytes + kCacheLine - 1) / kCacheLine, 1) * kCacheLine;
}

}  // namespace

std::optional<size_t> Outbox::place(size_t bytes) const {
  const size_t need = wholeLines(bytes);
  if (readers_.empty()) {
    if (need > capacity_) return std::nullopt;
    return head_ + need <= capacity_ ? head_ : 0;
  }
  // A message never ends exactly at the tail from below: head == tail would look like an empty ring.
  if (head_ < tail_) return head_ + need < tail_ ? std::optional<size_t>(head_) : std::nullopt;
  if (head_ + need <= capacity_) return head_;
  return need < tail_ ? std::optional<size_t>(0) : std::nullopt;
}

void Outbox::keep(size_t offset, size_t bytes, int rank, uint64_t sequence) {
  const size_t end = offset + wholeLines(bytes);
  if (readers_.empty()) tail_ = offset;
  // Only the message's last reader frees it: earlier readers move the tail no further than its start.
  if (!readers_.empty() && head_ == end && readers_.back().tail == end) readers_.back().tail = offset;
  readers_.push_back({rank, sequence, end});
  head_ = end;
}

void Outbox::dropOldest() {
  tail_ = readers_.front().tail;
  readers_.pop_front();
}

}  // namespace seqpar
