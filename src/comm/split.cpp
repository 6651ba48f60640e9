#include "comm/split.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "bootstrap/agree.h"
#include "bootstrap/bootstrap.h"

namespace seqpar {
namespace {

struct Request {
  int color = SEQPAR_SPLIT_NOCOLOR;
  int key = 0;
};

/// The error of a group's creation, which counts the group's ranks, as an error of a call on the parent.
Error ofParent(const SplitGroup& group, const Error& error) {
  constexpr size_t kListed = 8;
  std::string members;
  bool equal = true;
  for (size_t i = 0; i < group.members.size(); ++i) {
    equal = equal && group.members[i] == static_cast<int>(i);
    if (i < kListed) members += concat(i == 0 ? "" : ", ", group.members[i]);
  }
  if (equal) return error;
  if (group.members.size() > kListed) members += concat(" and ", group.members.size() - kListed, " more");
  return {error.result(), concat("in the group of ranks ", members, ", which count from 0 here: ", error.what())};
}

/// The members of a group wait for each other before they can notice that one of them is lost: only the parent does.
std::unique_ptr<Allgather> join(Communicator& parent, const SplitGroup& group, const CommConfig& config) {
  try {
    return joinRendezvous(group.id, group.place, static_cast<int>(group.members.size()),
                          ControlOptions{config.timeout, config.interfaceName}, parent.healthOfChild());
  } catch (const std::exception& error) {
    if (group.place == 0) endRendezvous(group.id);
    // A member that is lost also fails the parent, with an error that names it.
    const auto* const known = dynamic_cast<const Error*>(&error);
    const bool remote = known != nullptr && known->result() == seqparRemoteError;
    if (remote) parent.health().awaitFailure();
    if (remote && group.place > 0) {
      const FixedText text{"rank ", std::to_string(group.members.front()), ", the first of the group: ", error.what()};
      parent.lose(text);
      throw Error(seqparRemoteError, std::string(std::string_view(text)));
    }
    parent.lose(error.what());
    throw;
  }
}

/// Zeros: its rank could not listen.
void requireId(const seqparUniqueId& id, int rank) {
  const auto& chars = id.internal;
  if (std::any_of(std::begin(chars), std::end(chars), [](char one) { return one != 0; })) return;
  fail(seqparRemoteError, "rank ", rank, " could not listen for the members of its group; its error has the reason");
}

}  // namespace

SplitGroup agreeOnGroup(Communicator& parent, int color, int key, const CommConfig& config) {
  auto& control = parent.control();
  const auto ranks = static_cast<size_t>(parent.size());
  std::vector<Request> requests(ranks);
  control.gatherValues(Request{color, key}, std::span(requests));

  std::map<int, std::vector<int>> groups;  // by color
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (requests[rank].color != SEQPAR_SPLIT_NOCOLOR) groups[requests[rank].color].push_back(static_cast<int>(rank));
  }
  SplitGroup mine;
  for (auto& [groupColor, members] : groups) {
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return requests[static_cast<size_t>(a)].key < requests[static_cast<size_t>(b)].key;
    });
    mine.firstMembers.push_back(members.front());
    if (groupColor == color) mine.members = members;
  }
  std::sort(mine.firstMembers.begin(), mine.firstMembers.end());

  // The groups differ in size and so in their exchanges: each bootstraps from a separate server, at its first member.
  const bool first = !mine.members.empty() && mine.members.front() == parent.rank();
  std::vector<seqparUniqueId> ids(ranks);
  const auto secret = control.secret();
  const auto makeId = [&] {
    const auto name = concat("rank ", parent.rank(), " of the parent communicator");
    return secret ? makeLockedId(config.interfaceName, *secret, name) : makeUniqueId(config.interfaceName, name);
  };
  seqparUniqueId own{};
  std::string refused;
  try {
    if (first) own = makeId();
  } catch (const Error& error) {
    refused = error.what();
  }
  try {
    control.gatherValues(own, std::span(ids));
    if (!refused.empty()) throw Error(seqparSystemError, refused);
    for (const int one : mine.firstMembers) requireId(ids[static_cast<size_t>(one)], one);
  } catch (const Error&) {
    if (first && refused.empty()) endRendezvous(secret ? unlockId(own, *secret) : own);
    throw;
  }
  if (mine.members.empty()) return mine;
  const auto place = std::find(mine.members.begin(), mine.members.end(), parent.rank());
  mine.place = static_cast<int>(place - mine.members.begin());
  const seqparUniqueId& id = ids[static_cast<size_t>(mine.members.front())];
  mine.id = secret ? unlockId(id, *secret) : id;
  return mine;
}

std::shared_ptr<Communicator> makeSplitCommunicator(Communicator& parent, const SplitGroup& group,
                                                    const CommConfig& config) {
  const auto oob = join(parent, group, config);
  CommConfig own = config;
  own.borrowedNccl = nullptr;  // it spans the parent's ranks
  try {
    return std::make_shared<Communicator>(*oob, own);
  } catch (const Error& error) {
    parent.health().check();  // its failure names the parent's rank
    throw ofParent(group, error);
  }
}

void agreeOnSplit(Communicator& parent, const std::exception_ptr& mine) {
  const auto cause = findCause(parent.control(), mine);
  if (!cause) return;
  if (mine && cause->rank == parent.rank()) std::rethrow_exception(mine);
  fail(seqparRemoteError, "rank ", cause->rank, " could not create its group: ", cause->text);
}

}  // namespace seqpar
