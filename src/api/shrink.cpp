// Continuing without lost ranks.
#include "api/shrink.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "api/boundary.h"
#include "base/versioned.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/lineage.h"
#include "bootstrap/rendezvous_client.h"
#include "seqpar/shrink.h"

using namespace seqpar;

namespace {

/// The index of `rank` in `members`, or -1.
int placeOf(const std::vector<int>& members, int rank) {
  const auto found = std::find(members.begin(), members.end(), rank);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

/// Collective over the members of `next`.
std::shared_ptr<CommEntry> build(Communicator& parent, const Successor& next, const CommConfig& config) {
  const Descent& from = parent.descent();
  const int own = from.members[static_cast<size_t>(parent.rank())];
  Descent descent{from.lineage, next.epoch, next.members, {}};
  for (const int member : next.members) descent.parentRanks.push_back(placeOf(from.members, member));
  const auto oob = joinRendezvous(next.meeting, placeOf(next.members, own), static_cast<int>(next.members.size()),
                                  ControlOptions{config.timeout, config.interfaceName}, next.joining);
  auto entry = std::make_shared<CommEntry>(std::make_shared<Communicator>(*oob, config, std::move(descent)));
  std::vector<char> all(next.members.size());
  entry->comm->control().gatherValues(char{0}, std::span(all));
  entry->comm->enterLineage();
  return entry;
}

std::shared_ptr<CommEntry> buildAlone(const CommConfig& config) {
  const auto oob = makeSolo();
  return std::make_shared<CommEntry>(std::make_shared<Communicator>(*oob, config, Descent{nullptr, 0, {}, {0}}));
}

/// seqparGetLastError() returns the thread's error, no longer that of the lost communicator.
void reportInsteadOfFailure(seqparComm_t handle) noexcept {
  const auto entry = comms().find(handle);
  if (!entry || !entry->callers.enter(nullptr)) return;  // another thread may be ending the communicator
  {
    const std::lock_guard lock(entry->mutex);
    if (!entry->comm->health().ok()) assignText(entry->ending, threadError());
  }
  entry->callers.leave(nullptr);
}

}  // namespace

namespace seqpar {

std::shared_ptr<CommEntry> shrinkEntry(Communicator& parent, const ShrinkOptions& options) {
  parent.revoke();
  parent.giveUp();
  const Descent& from = parent.descent();
  if (!from.lineage) return buildAlone(options.config);
  for (int attempt = 1;; ++attempt) {
    const Successor next = from.lineage->agree(from.epoch, options.timeout);
    const auto count = static_cast<int>(next.members.size());
    if (count < options.minRanks) {
      fail(seqparRemoteError, "ranks left: ", count, ", expected at least params->minRanks = ", options.minRanks);
    }
    try {
      return build(parent, next, options.config);
    } catch (const Error& error) {
      // A member was lost meanwhile: the next vote decides without it.
      if (error.result() != seqparRemoteError || attempt >= parent.size()) throw;
    }
  }
}

}  // namespace seqpar

extern "C" {

SEQPAR_API seqparResult_t seqparCommRevoke(seqparComm_t handle) {
  return onComm("seqparCommRevoke", handle, [](Communicator& comm) { comm.revoke(); });
}

SEQPAR_API seqparResult_t seqparCommShrink(seqparComm_t handle, const seqparShrinkParams_t* params,
                                           seqparComm_t* newcomm) {
  const char* call = "seqparCommShrink";
  const auto result = onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, "newcomm", newcomm);
    *newcomm = nullptr;
    const seqparShrinkParams_t defaults = SEQPAR_SHRINK_PARAMS_INITIALIZER;
    const auto given = params == nullptr ? defaults : readVersioned(call, "params", params, defaults);
    if (given.timeoutMs < 0)
      fail(seqparInvalidArgument, call, ": params->timeoutMs is ", given.timeoutMs, ", expected 0 or more");
    if (given.minRanks < 0)
      fail(seqparInvalidArgument, call, ": params->minRanks is ", given.minRanks, ", expected 0 or more");
    if (comm.config().borrowedNccl != nullptr) {
      fail(seqparInvalidUsage, call,
           ": comm was created by seqparCommInitNccl; expected another communicator: create an "
           "ncclComm_t without the lost ranks and call seqparCommInitNccl");
    }
    ShrinkOptions options;
    options.config = resolveConfig(call, given.config, comm.config());
    options.timeout = given.timeoutMs == 0 ? comm.config().timeout : std::chrono::milliseconds(given.timeoutMs);
    options.minRanks = given.minRanks;
    *newcomm = comms().add(shrinkEntry(comm, options));
  });
  if (result != seqparSuccess) reportInsteadOfFailure(handle);
  return result;
}

SEQPAR_API seqparResult_t seqparCommParentRanks(seqparComm_t handle, int* ranks) {
  const char* call = "seqparCommParentRanks";
  return onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, "ranks", ranks);
    const auto& parents = comm.descent().parentRanks;
    if (parents.empty()) {
      fail(seqparInvalidUsage, call, ": comm was not created by seqparCommShrink; expected a communicator that was");
    }
    std::copy(parents.begin(), parents.end(), ranks);
  });
}

}  // extern "C"
