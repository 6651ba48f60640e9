#include "bootstrap/strangers.h"

#include <algorithm>

namespace seqpar {

bool Strangers::mayAdd(Time now) const {
  return all_.size() < kMost || now >= roomAt();
}

Strangers::Time Strangers::roomAt() const {
  return all_.size() < kMost ? Time::min() : all_.front().since + kPatience;
}

std::optional<Strangers::Id> Strangers::add(Id id, uint64_t source, Time now) {
  const auto isSame = [&](const One& one) { return one.source == source; };
  const auto same = std::find_if(all_.begin(), all_.end(), isSame);
  std::optional<Id> dropped;
  if (all_.size() >= kMost) dropped = all_.front().id;
  if (std::count_if(all_.begin(), all_.end(), isSame) >= static_cast<std::ptrdiff_t>(kMostOfSource) &&
      now - same->since >= kPatience) {
    dropped = same->id;
  }
  if (dropped) forget(*dropped);
  all_.push_back({id, source, now});
  return dropped;
}

void Strangers::forget(Id id) {
  std::erase_if(all_, [id](const One& one) { return one.id == id; });
}

}  // namespace seqpar
