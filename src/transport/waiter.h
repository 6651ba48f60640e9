// Waiting of a rank: a short spin if it has its own processor, then yielding, then sleeping. Every wait ends when the
// communicator has failed or the operation has timed out.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "base/health.h"
#include "base/log.h"
#include "base/reminder.h"
#include "transport/segment.h"

namespace seqpar {

class Network;

/// Wakes the rank that sleeps at `doorbell`, if any. Call it after a sequentially consistent store of the awaited data.
void ring(Doorbell& doorbell);

class Waiter {
 public:
  /// Event that ends the wait: a store of a rank of this host, or a network message.
  enum class By { Store, Network };

  struct Options {
    int rank = 0;
    std::chrono::milliseconds timeout{0};  ///< 0: none
    bool spins = false;                    ///< every rank of the host has its own processor
  };

  /// `network` may be null. All must outlive the object.
  Waiter(Health& health, Doorbell& doorbell, Network* network, const Options& options)
      : health_(health), doorbell_(doorbell), network_(network), options_(options) {}

  /// Names the operation of the following waits; `operation` must stay valid.
  void begin(const char* operation, uint64_t number) {
    operation_ = operation;
    number_ = number;
    waited_ = false;
  }
  /// True if a wait since begin() took more than about 2 us.
  bool waited() const { return waited_; }

  /// Waits until ready(), which must use sequentially consistent loads. `description()` completes the sentence "rank 3
  /// waited 30 s ...".
  template <typename Ready, typename Description>
  void wait(By by, Ready&& ready, Description&& description) {
    if (ready()) return;
    for (unsigned poll = 0; options_.spins && poll < kPolls; ++poll) {
      if (ready()) return;
    }
    for (unsigned round = 0; round < kRoundsBetweenClocks; ++round) {
      if (ready()) return;
      if (!relax(by, round)) break;
    }
    waited_ = true;
    const Deadline deadline(options_.timeout);
    Reminder reminder(Reminder::Clock::now());
    for (unsigned round = kRoundsBetweenClocks; !ready(); ++round) {
      if (!health_.ok() || (round % kRoundsBetweenClocks == 0 && deadline.passed())) giveUp(description());
      if (!relax(by, round)) {
        fallAsleep(by);
        if (!ready()) sleep(by);
        wakeUp(by);
        if (deadline.passed() && !ready()) giveUp(description());
        if (logs(LogLevel::Warn)) remind(reminder, description);
      }
    }
  }

 private:
  static constexpr unsigned kRoundsBetweenClocks = 64;
  /// Polls before the first pause. A message in flight arrives within 0.1 us, and a pause takes up to 25 ns.
  static constexpr unsigned kPolls = 64;

  /// Spins or yields for a moment; returns false if it is time to sleep.
  bool relax(By by, unsigned round);
  void fallAsleep(By by);
  void sleep(By by);
  void wakeUp(By by);
  /// Logs a line about a long wait, at intervals.
  template <typename Description>
  void remind(Reminder& reminder, Description&& description) {
    const auto now = Reminder::Clock::now();
    if (reminder.due(now)) warn(reminder.lasted(now), description());
  }
  void warn(std::chrono::seconds lasted, const std::string& description);
  [[noreturn]] void giveUp(const std::string& description);

  Health& health_;
  Doorbell& doorbell_;
  Network* network_;
  Options options_;
  const char* operation_ = "no operation";
  uint64_t number_ = 0;
  bool waited_ = false;
};

}  // namespace seqpar
