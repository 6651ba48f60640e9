#include "api/split.h"

#include <algorithm>
#include <exception>
#include <new>

#include "api/boundary.h"
#include "base/memory.h"
#include "comm/split.h"
#include "device/group.h"

namespace seqpar {
namespace {

bool sharesGpus(const Communicator& comm) {
  return comm.device() != nullptr && comm.device()->shared();
}

/// The creation of one rank's group, with its result or error.
class Attempt {
 public:
  Attempt() = default;
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  ~Attempt() { discard(); }

  void make(Communicator& parent, const SplitGroup& group, const CommConfig& config) {
    try {
      entry_ = std::make_shared<CommEntry>(makeSplitCommunicator(parent, group, config));
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  /// Collective over `parent`: the entry if all ranks succeeded.
  std::shared_ptr<CommEntry> agree(Communicator& parent) {
    agreeOnSplit(parent, error_);
    return std::move(entry_);
  }

 private:
  /// Ends the entry without waiting for other members of the group, which may have succeeded.
  void discard() {
    CreatedEntries ended;
    if (entry_) ended.add(std::move(entry_));
  }

  std::shared_ptr<CommEntry> entry_;
  std::exception_ptr error_;
};

std::shared_ptr<CommEntry> split(Communicator& parent, int color, int key, const CommConfig& config) {
  const SplitGroup group = agreeOnGroup(parent, color, key, config);
  Attempt attempt;
  const auto member = [&](int firstMember) { return group.place >= 0 && group.members.front() == firstMember; };
  if (!sharesGpus(parent)) {
    if (group.place >= 0) attempt.make(parent, group, config);
    return attempt.agree(parent);
  }
  std::vector<int> meeting(static_cast<size_t>(parent.size()));
  for (const int first : group.firstMembers) {
    if (member(first)) attempt.make(parent, group, config);
    parent.control().gatherValues(parent.rank(), std::span(meeting));
  }
  return attempt.agree(parent);
}

}  // namespace

std::shared_ptr<CommEntry> splitEntry(Communicator& parent, int color, int key, const CommConfig& config) {
  try {
    return split(parent, color, key, config);
  } catch (const std::bad_alloc&) {
    parent.lose(kNoMemory);  // the other ranks wait for this one
    throw;
  }
}

CreatedEntries::~CreatedEntries() {
  for (const auto& entry : entries_) {
    atBoundary("the end of a communicator that was not handed over", [&] {
      entry->comm->abort();
      entry->comm->close();
    });
  }
}

void CreatedEntries::handOver(std::span<seqparComm_t> into, const Add& add, const Remove& remove) {
  size_t given = 0;
  try {
    for (; given < entries_.size(); ++given) into[given] = add(entries_[given]);
  } catch (...) {
    for (size_t i = 0; i < given; ++i) remove(into[i]);
    std::fill(into.begin(), into.end(), nullptr);
    throw;
  }
  entries_.clear();
}

}  // namespace seqpar
