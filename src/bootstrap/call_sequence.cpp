#include "bootstrap/call_sequence.h"

#include <algorithm>
#include <utility>

namespace seqpar {

bool CallSequence::conflicts(const Refusal& refusal) const {
  return refusal.number > refused_.size() ? calls_ > refusal.calls : refused_[refusal.number - 1] != refusal.calls;
}

std::string CallSequence::count() {
  const std::lock_guard lock(mutex_);
  if (!open_.exchange(false)) return {};
  ++calls_;
  const auto found =
      std::find_if(pending_.begin(), pending_.end(), [this](const Refusal& one) { return conflicts(one); });
  return found == pending_.end() ? std::string() : found->why;
}

Refusal CallSequence::refuse(const std::string& why) {
  const std::lock_guard lock(mutex_);
  open_.store(false);
  refused_.push_back(calls_);
  std::erase_if(pending_, [this](const Refusal& one) { return one.number <= refused_.size() && !conflicts(one); });
  return {refused_.size(), calls_, why};
}

std::string CallSequence::textOf(Refusal refusal) {
  const std::lock_guard lock(mutex_);
  if (conflicts(refusal)) return std::move(refusal.why);
  if (refusal.number > refused_.size()) pending_.push_back(std::move(refusal));
  return {};
}

}  // namespace seqpar
