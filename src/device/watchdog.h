// A thread that synchronizes failures of the host and its kernels: a failure on the host ends kernels that wait, and a
// kernel's timeout becomes a failure on the host.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/health.h"

namespace seqpar {

class Watchdog {
 public:
  /// Calls `poll` every few milliseconds while the communicator works, and `end` once after it has failed.
  Watchdog(const Health& health, std::function<void()> poll, std::function<void()> end);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  /// Ends the thread; neither function is called afterwards.
  ~Watchdog();

 private:
  void serve();

  const Health& health_;
  std::function<void()> poll_, end_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace seqpar
