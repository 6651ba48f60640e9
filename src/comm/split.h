// New communicators out of an existing one.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace seqpar {

/// What the ranks of a communicator agree on before it is split.
struct SplitGroup {
  std::vector<int> members;       ///< of this rank's group, in its order; empty for SEQPAR_SPLIT_NOCOLOR
  int place = -1;                 ///< this rank's among them; -1: none
  std::vector<int> firstMembers;  ///< of all groups, ascending
  seqparUniqueId id{};            ///< where the group meets
};

/// Collective over `parent`: as seqparCommSplit().
SplitGroup agreeOnGroup(Communicator& parent, int color, int key, const CommConfig& config);

/// Collective over the group.
std::shared_ptr<Communicator> makeSplitCommunicator(const SplitGroup& group, const CommConfig& config);

}  // namespace seqpar
