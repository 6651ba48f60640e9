// A thread that stands between the host's view of a communicator and its kernels: a failure on the host ends kernels
// that wait, and a kernel that timed out is a failure on the host.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/health.h"

namespace seqpar {

class Watchdog {
 public:
  /// `look` is called every few milliseconds while the communicator works, and `end` once, after it has failed.
  Watchdog(const Health& health, std::function<void()> look, std::function<void()> end);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  /// Ends the thread; calls neither function any more.
  ~Watchdog();

 private:
  void serve();

  const Health& health_;
  std::function<void()> look_, end_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace seqpar
