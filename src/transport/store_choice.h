// Chooses between ordinary and streamed stores for the messages to one reader, by the times of both.
//
// Between two processors that share a cache, messages written with ordinary stores are read up to three times faster;
// between others, both writing and reading them take ten times as long. The system does not tell: virtual machines
// report caches that their processors do not share, and ranks and virtual processors migrate. So the sender now and
// then makes a trial of two consecutive messages of equal size, the second written the other way. It measures its
// writing, and the reader reports its reading.
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

/// A reader's times for both messages of its latest trial, as one word.
struct ReadingTimes {
  /// 0: no trial yet.
  uint64_t word = 0;

  static constexpr int kBits = 24;
  static constexpr uint64_t kMost = (uint64_t{1} << kBits) - 1;
  /// The times in ticks, limited to kMost; `number` distinguishes consecutive trials.
  static ReadingTimes of(uint16_t number, int64_t first, int64_t second);
  int64_t first() const { return static_cast<int64_t>(word & kMost); }
  int64_t second() const { return static_cast<int64_t>(word >> kBits & kMost); }
};

/// The sender's part.
class StoreChoice {
 public:
  explicit StoreChoice(Store first) : store_(first) {}

  struct Use {
    Store store;
    Trial trial;
  };

  /// The way to write the next message, of `bytes`. Calls times(), which loads a ReadingTimes from the reader's cache
  /// line, some messages after a trial.
  template <typename Load>
  Use next(size_t bytes, Load&& times) {
    if (second_) {
      const bool equal = bytes == *second_;
      second_.reset();
      left_ = equal ? kLeastPeriod : 1;
      learned_ = !equal;
      if (equal) return {other(), Trial::Second};
    }
    if (left_ > 1) {
      --left_;
      return {store_, Trial::None};
    }
    if (!learned_) {
      learned_ = true;
      learn(times());
      left_ = period_;
      if (period_ > kLeastPeriod) return {store_, Trial::None};
    }
    second_ = bytes;
    return {store_, Trial::First};
  }

  /// Writing a message of a trial took `ticks`.
  void wrote(Trial trial, int64_t ticks) { (trial == Trial::First ? firstTicks_ : secondTicks_) = ticks; }

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
  /// A change takes three of the latest four trials: a single one may be an interrupt.
  static constexpr unsigned kVotes = 4, kMajority = 3;

  Store other() const { return store_ == Store::Cached ? Store::Streamed : Store::Cached; }
  void learn(ReadingTimes times);

  Store store_;
  unsigned period_ = kLeastPeriod;
  unsigned left_ = kLeastPeriod;  ///< messages until the next trial, or until its times are loaded
  std::optional<size_t> second_;  ///< the size of a trial's second message, if that is next
  bool learned_ = true;           ///< the latest trial's reading times have been loaded
  int64_t firstTicks_ = 0, secondTicks_ = 0;
  uint64_t known_ = 0;
  unsigned votes_ = 0;  ///< one bit per trial, 1 if the other way was faster; the latest lowest
};

/// The reader's part: measures the reading of a trial's messages.
class TrialClock {
 public:
  /// A message can be read.
  void begin(Trial trial, size_t bytes, int64_t ticks) {
    trial_ = trial;
    bytes_ = bytes;
    start_ = ticks;
  }
  bool running() const { return trial_ != Trial::None; }
  /// The message has been read. Returns the times if it ended a trial.
  std::optional<ReadingTimes> end(int64_t ticks);

 private:
  Trial trial_ = Trial::None;
  size_t bytes_ = 0, firstBytes_ = 0;
  int64_t start_ = 0, first_ = 0;
  uint16_t trials_ = 0;
};

}  // namespace seqpar
