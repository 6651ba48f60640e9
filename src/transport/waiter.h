// How a rank waits: briefly spinning where it has a processor of its own, then giving the processor away, then asleep.
// Every wait ends when the communicator has failed or the operation's time is over.
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

/// Wakes the rank that sleeps at `bell`, if it does. To be called after what it waits for was stored, sequentially
/// consistent.
void ring(Bell& bell);

class Waiter {
 public:
  /// What ends the wait: a store of a rank of this host, or something that the network brings.
  enum class By { Store, Network };

  struct Options {
    int rank = 0;
    std::chrono::milliseconds timeout{0};  ///< 0: none
    bool spins = false;                    ///< every rank of the host has a processor of its own
  };

  /// `network` may be null. All must outlive the object.
  Waiter(Health& health, Bell& bell, Network* network, const Options& options)
      : health_(health), bell_(bell), network_(network), options_(options) {}

  /// Names what is waited for from now on; `operation` must stay.
  void begin(const char* operation, uint64_t number) {
    operation_ = operation;
    number_ = number;
  }

  /// Waits until ready(), which must read what it looks at sequentially consistent. `wanted()` ends the sentence
  /// "rank 3 waited 30 s ...".
  template <typename Ready, typename Wanted>
  void wait(By by, Ready&& ready, Wanted&& wanted) {
    for (unsigned round = 0; round < kRoundsBetweenClocks; ++round) {
      if (ready()) return;
      if (!relax(by, round)) break;
    }
    const Deadline deadline(options_.timeout);
    Reminder reminder(Reminder::Clock::now());
    for (unsigned round = kRoundsBetweenClocks; !ready(); ++round) {
      if (!health_.ok() || (round % kRoundsBetweenClocks == 0 && deadline.passed())) giveUp(wanted());
      if (!relax(by, round)) {
        fallAsleep(by);
        if (!ready()) sleep(by);
        wakeUp(by);
        if (deadline.passed() && !ready()) giveUp(wanted());
        if (logs(LogLevel::Warn)) remind(reminder, wanted);
      }
    }
  }

 private:
  static constexpr unsigned kRoundsBetweenClocks = 64;

  /// Passes a moment awake; false if it is time to sleep.
  bool relax(By by, unsigned round);
  void fallAsleep(By by);
  void sleep(By by);
  void wakeUp(By by);
  /// Writes a line about a long wait, now and then.
  template <typename Wanted>
  void remind(Reminder& reminder, Wanted&& wanted) {
    const auto now = Reminder::Clock::now();
    if (reminder.due(now)) warn(reminder.lasted(now), wanted());
  }
  void warn(std::chrono::seconds lasted, const std::string& wanted);
  [[noreturn]] void giveUp(const std::string& wanted);

  Health& health_;
  Bell& bell_;
  Network* network_;
  Options options_;
  const char* operation_ = "no operation";
  uint64_t number_ = 0;
};

}  // namespace seqpar
