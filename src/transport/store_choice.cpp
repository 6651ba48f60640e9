#include "transport/store_choice.h"

#include <algorithm>
#include <bit>

namespace seqpar {

void StoreChoice::learn(Verdicts verdicts) {
  if (verdicts == known_) return;
  known_ = verdicts;
  votes_ = (votes_ << 1 | (verdicts & 1)) & ((1U << kVotes) - 1);
  if (static_cast<unsigned>(std::popcount(votes_)) >= kMajority) {
    store_ = other();
    votes_ = 0;
    period_ = kLeastPeriod;
    return;
  }
  period_ = votes_ == 0 ? std::min(2 * period_, kMostPeriod) : kLeastPeriod;
}

std::optional<Verdicts> TrialClock::end(int64_t ticks) {
  // The other way must be faster by a tenth.
  constexpr int64_t kTenths = 10, kLess = 9;
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
  const bool faster = took * kTenths < first_ * kLess;
  verdicts_ = (verdicts_ / 2 + 1) * 2 + (faster ? 1 : 0);
  return verdicts_;
}

}  // namespace seqpar
