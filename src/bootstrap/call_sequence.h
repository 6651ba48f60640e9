// This rank's position in the sequence of calls that all ranks issue, and the calls that it refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace seqpar {

/// A rank's refusal of a call, as sent to the other ranks.
struct Refusal {
  uint64_t number = 0;  ///< index among the rank's refusals, from 1
  uint64_t calls = 0;   ///< earlier calls with communication by the rank
  std::string why;
};

/// Distinguishes a call that one rank refused from a call that all ranks refused. Ranks that refuse the same call do so
/// after the same number of calls. A rank that has communicated in a later call without refusing is waiting for a rank
/// that will not take part. Uses no clock: a slow refusal never counts as waiting.
class CallSequence {
 public:
  /// The next communication belongs to a new call.
  void next() noexcept { open_.store(true, std::memory_order_relaxed); }

  /// Communication starts. Returns the text of the refusal that prevents its success, or "".
  std::string communicate() { return open_.load(std::memory_order_relaxed) ? count() : std::string(); }

  /// This rank refuses the call. Returns the message for the other ranks.
  Refusal refuse(const std::string& why);

  /// Another rank refused a call. Returns its text if this rank's call cannot succeed, or "".
  std::string textOf(Refusal refusal);

 private:
  std::string count();
  bool conflicts(const Refusal& refusal) const;

  std::atomic<bool> open_{false};
  mutable std::mutex mutex_;
  uint64_t calls_ = 0;
  std::vector<uint64_t> refused_;  ///< calls before each refusal of this rank
  std::vector<Refusal> pending_;   ///< of other ranks, for calls that this rank has not reached
};

}  // namespace seqpar
