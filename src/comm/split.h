// Communicators created from an existing one.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace seqpar {

/// The ranks' agreement before a communicator is split.
struct SplitGroup {
  std::vector<int> members;       ///< of this rank's group, in order; empty for SEQPAR_SPLIT_NOCOLOR
  int place = -1;                 ///< this rank's index in `members`; -1: none
  std::vector<int> firstMembers;  ///< of all groups, ascending
  seqparUniqueId id{};            ///< address of the group's bootstrap server
};

/// Collective over `parent`: as seqparCommSplit().
SplitGroup agreeOnGroup(Communicator& parent, int color, int key, const CommConfig& config);

/// Collective over the group. Fails as soon as `parent` does, and ends `parent` if this rank cannot join the others.
std::shared_ptr<Communicator> makeSplitCommunicator(Communicator& parent, const SplitGroup& group,
                                                    const CommConfig& config);

/// Collective over `parent`: returns if all ranks created their groups. `mine`: this rank's error, or null. A rank that
/// failed itself throws it; the others, also those that only missed a member, throw a RemoteError that names that rank.
void agreeOnSplit(Communicator& parent, const std::exception_ptr& mine);

}  // namespace seqpar
