#include "base/owned_counter.h"

#include <chrono>
#include <thread>

namespace seqpar {

uint64_t OwnedCounter::nextOfAnother() noexcept {
  const char* owner = owner_.load(std::memory_order_acquire);
  if (owner == nullptr && owner_.compare_exchange_strong(owner, &mark_)) return next();
  if (owner != &shared_) endOwnership();
  return value_.fetch_add(1);
}

bool OwnedCounter::undo(uint64_t value) noexcept {
  if (owner_.load() != &shared_) endOwnership();
  uint64_t latest = value + 1;
  return value_.compare_exchange_strong(latest, value);
}

void OwnedCounter::endOwnership() noexcept {
  const std::lock_guard lock(mutex_);
  if (owner_.load() == &shared_) return;
  owner_.store(&ending_);
  heavyFence();
  // Sleeps, as the owner may need this processor to go on.
  while (busy_.load(std::memory_order_acquire)) std::this_thread::sleep_for(std::chrono::microseconds(20));
  owner_.store(&shared_);
}

}  // namespace seqpar
