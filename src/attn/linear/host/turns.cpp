#include "attn/linear/host/turns.h"

#include <map>
#include <utility>

namespace seqpar::attn::linear {

std::shared_ptr<RelayTurns> RelayTurns::of(seqparComm_t comm) {
  static auto& mutex = *new std::mutex;  // never destroyed: plans may be created while the process exits
  static auto& all = *new std::map<seqparComm_t, std::weak_ptr<RelayTurns>>;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto turns = all[comm].lock();
  if (turns == nullptr) all[comm] = turns = std::make_shared<RelayTurns>();
  return turns;
}

bool RelayTurns::startsAndEnds(seqparDirection_t direction) {
  const std::lock_guard lock(mutex_);
  const bool turned = std::exchange(latest_, direction) != direction;
  const int before = turned ? std::exchange(length_[direction], 0) : 0;
  ++length_[direction];
  return before == 1;
}

}  // namespace seqpar::attn::linear
