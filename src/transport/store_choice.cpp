#include "transport/store_choice.h"

#include <algorithm>
#include <bit>

namespace seqpar {

ReadingTimes ReadingTimes::of(uint16_t number, int64_t first, int64_t second) {
  const auto limited = [](int64_t ticks) { return std::clamp<uint64_t>(static_cast<uint64_t>(ticks), 1, kMost); };
  return {uint64_t{number} << 2 * kBits | limited(second) << kBits | limited(first)};
}

void StoreChoice::learn(ReadingTimes times) {
  // The other way must be faster by a tenth.
  constexpr int64_t kTenths = 10, kLess = 9;
  if (times.word == known_) return;
  known_ = times.word;
  const bool faster = (secondTicks_ + times.second()) * kTenths < (firstTicks_ + times.first()) * kLess;
  votes_ = (votes_ << 1 | (faster ? 1U : 0U)) & ((1U << kVotes) - 1);
  if (static_cast<unsigned>(std::popcount(votes_)) >= kMajority) {
    store_ = other();
    votes_ = 0;
    period_ = kLeastPeriod;
    return;
  }
  period_ = votes_ == 0 ? std::min(2 * period_, kMostPeriod) : kLeastPeriod;
}

std::optional<ReadingTimes> TrialClock::end(int64_t ticks) {
  const int64_t took = ticks - start_;
  const Trial trial = trial_;
  trial_ = Trial::None;
  if (trial == Trial::First) {
    first_ = took;
    firstBytes_ = bytes_;
    return std::nullopt;
  }
  if (firstBytes_ != bytes_) return std::nullopt;
  firstBytes_ = 0;
  return ReadingTimes::of(++trials_, first_, took);
}

}  // namespace seqpar
