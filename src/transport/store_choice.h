// Chooses between ordinary and streamed stores for the messages to one reader, by the reader's measurements.
//
// Between two processors that share a cache, messages written with ordinary stores are read up to three times faster;
// between others, ten times slower. Nobody can tell in advance: virtual machines report caches that their processors
// do not share, and ranks and virtual processors migrate. So the sender now and then makes a trial of two consecutive
// messages of equal size, the second written the other way, and the reader reports which it read faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/target.h"

namespace seqpar {

/// The role of a message in a trial.
enum class Trial : uint16_t {
  None,
  First,  ///< written in the current way
  Second  ///< written in the other way
};

/// The verdicts of a reader on trials, as one word: their number, and in the lowest bit the latest one, 1 if the second
/// message was read faster. 0: none yet.
using Verdicts = uint64_t;

/// The sender's part.
class StoreChoice {
 public:
  explicit StoreChoice(Store first) : store_(first) {}

  struct Use {
    Store store;
    Trial trial;
  };

  /// The way to write the next message, of `bytes`. Calls verdicts(), a load of the reader's cache line, some messages
  /// after a trial.
  template <typename Load>
  Use next(size_t bytes, Load&& verdicts) {
    if (second_) {
      const bool equal = bytes == *second_;
      second_.reset();
      left_ = equal ? kLeastPeriod : 1;
      judged_ = !equal;
      if (equal) return {other(), Trial::Second};
    }
    if (left_ > 1) {
      --left_;
      return {store_, Trial::None};
    }
    if (!judged_) {
      judged_ = true;
      learn(verdicts());
      left_ = period_;
      if (period_ > kLeastPeriod) return {store_, Trial::None};
    }
    second_ = bytes;
    return {store_, Trial::First};
  }

  /// The current way, without a trial.
  Store store() const { return store_; }

  /// Counts a payload that could also be read in place as a message. True if it should be sent in messages, for the
  /// sake of a trial.
  bool trialDue() {
    if (second_ || left_ <= 1) return true;
    --left_;
    return false;
  }

 private:
  /// Messages between two trials: after a change, and while trials confirm the choice. A trial costs at most one slow
  /// message.
  static constexpr unsigned kLeastPeriod = 4, kMostPeriod = 256;
  /// A change takes three of the latest four verdicts: a single one may be an interrupt.
  static constexpr unsigned kVotes = 4, kMajority = 3;

  Store other() const { return store_ == Store::Cached ? Store::Streamed : Store::Cached; }
  void learn(Verdicts verdicts);

  Store store_;
  unsigned period_ = kLeastPeriod;
  unsigned left_ = kLeastPeriod;  ///< messages until the next trial, or until its verdict is loaded
  std::optional<size_t> second_;  ///< the size of a trial's second message, if that is next
  bool judged_ = true;            ///< the latest trial's verdict has been loaded
  Verdicts known_ = 0;
  unsigned votes_ = 0;  ///< one bit per verdict for the other way, the latest lowest
};

/// The reader's part: compares the reading times of a trial's messages.
class TrialClock {
 public:
  /// A message can be read.
  void begin(Trial trial, size_t bytes, int64_t ticks) {
    trial_ = trial;
    bytes_ = bytes;
    start_ = ticks;
  }
  bool running() const { return trial_ != Trial::None; }
  /// The message has been read. Returns the verdicts if there is a new one.
  std::optional<Verdicts> end(int64_t ticks);

 private:
  Trial trial_ = Trial::None;
  size_t bytes_ = 0, firstBytes_ = 0;
  int64_t start_ = 0, first_ = 0;
  Verdicts verdicts_ = 0;
};

}  // namespace seqpar
