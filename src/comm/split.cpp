#include "comm/split.h"

#include <algorithm>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace seqpar {
namespace {

struct Wish {
  int color = SEQPAR_SPLIT_NOCOLOR;
  int key = 0;
};

}  // namespace

std::shared_ptr<Communicator> splitCommunicator(Communicator& parent, int color, int key, const CommConfig& config) {
  auto& control = parent.control();
  const auto ranks = static_cast<size_t>(parent.size());
  std::vector<Wish> wishes(ranks);
  control.gatherValues(Wish{color, key}, std::span(wishes));

  std::vector<int> members;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (wishes[rank].color == color) members.push_back(static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return wishes[static_cast<size_t>(a)].key < wishes[static_cast<size_t>(b)].key;
  });

  // The groups differ in size and so in what they exchange: each meets at a server of its own, at its first member.
  const bool member = color != SEQPAR_SPLIT_NOCOLOR;
  seqparUniqueId mine{};
  if (member && members.front() == parent.rank()) mine = makeUniqueId(config.interfaceName);
  std::vector<seqparUniqueId> ids(ranks);
  control.gatherValues(mine, std::span(ids));
  if (!member) return nullptr;

  const auto place = std::find(members.begin(), members.end(), parent.rank()) - members.begin();
  const auto oob =
      joinRendezvous(ids[static_cast<size_t>(members.front())], static_cast<int>(place),
                     static_cast<int>(members.size()), ControlOptions{config.timeout, config.interfaceName});
  CommConfig own = config;
  own.borrowedNccl = nullptr;  // it has the parent's ranks
  return std::make_shared<Communicator>(*oob, own);
}

}  // namespace seqpar
