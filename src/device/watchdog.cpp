#include "device/watchdog.h"

#include <chrono>
#include <utility>

namespace seqpar {
namespace {

/// Maximum delay until a failure is noticed; successful work does not wait for it.
constexpr std::chrono::milliseconds kPeriod{5};

}  // namespace

Watchdog::Watchdog(const Health& health, std::function<void()> poll, std::function<void()> end)
    : health_(health), poll_(std::move(poll)), end_(std::move(end)), thread_([this] { serve(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::serve() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kPeriod, [this] { return stopping_; })) {
    if (health_.ok()) poll_();
    if (!health_.ok()) {
      end_();
      return;
    }
  }
}

}  // namespace seqpar
