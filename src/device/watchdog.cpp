#include "device/watchdog.h"

#include <chrono>
#include <cstdlib>
#include <shared_mutex>
#include <utility>

namespace seqpar {
namespace {

/// Maximum delay until a failure is noticed; successful work does not wait for it.
constexpr std::chrono::milliseconds kPeriod{5};

/// The longest wait of the process's exit for a watchdog.
constexpr std::chrono::seconds kExit{1};

/// Shared by watchdogs during their functions, which call CUDA. The process's exit takes it for good: afterwards the
/// CUDA runtime is destroyed, and a communicator that was not destroyed still has its thread.
std::shared_timed_mutex& running() {
  static auto& mutex = *new std::shared_timed_mutex;
  return mutex;
}

/// Functions of std::atexit() run in the reverse order of their registration: before the CUDA runtime's if it has been
/// used.
void stopAtExit() {
  static const int registered = std::atexit([] { (void)running().try_lock_for(kExit); });
  (void)registered;
}

}  // namespace

Watchdog::Watchdog(const Health& health, std::function<void()> poll, std::function<void()> end)
    : health_(health), poll_(std::move(poll)), end_(std::move(end)), thread_([this] { serve(); }) {
  stopAtExit();
}

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
    const std::shared_lock runs(running(), std::try_to_lock);
    if (!runs.owns_lock()) continue;  // the process exits
    if (health_.ok()) poll_();
    if (!health_.ok()) {
      end_();
      return;
    }
  }
}

}  // namespace seqpar
