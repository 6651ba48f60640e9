#include "campaign_rank.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "common/timeouts.h"
#include "limits.h"
#include "random_calls.h"
#include "seqpar/shrink.h"

namespace seqpar::test {
namespace {

constexpr int kAgain = 20;            ///< calls on the new communicator
constexpr int kCalm = 200;            ///< calls without a failure after a harmless fault
constexpr int kShortCalls = 100;      ///< calls of a rank that is short of something and may never notice
constexpr double kMostSeconds = 120;  ///< A job without a failure for so long has missed it.

/// Calls on the new communicator. "" or what went wrong.
std::string computeAgain(const Trial& trial, seqparComm_t comm) {
  RandomCalls calls(comm, trial.seed + 1);
  std::string wrong;
  for (int i = 0; i < kAgain && wrong.empty(); ++i) {
    if (calls.next() != seqparSuccess) wrong = std::string(calls.latest()) + ": " + calls.error();
  }
  if (calls.wrong() > 0) wrong = std::string(calls.latest()) + " was wrong";
  if (seqparCommDestroy(comm) != seqparSuccess && wrong.empty()) wrong = seqparGetLastError(nullptr);
  return wrong;
}

std::string shrinkAndCompute(const Trial& trial, seqparComm_t comm) {
  seqparComm_t next = nullptr;
  if (seqparCommShrink(comm, nullptr, &next) != seqparSuccess) return seqparGetLastError(comm);
  int count = 0;
  seqparCommCount(next, &count);
  std::vector<int> parents(static_cast<size_t>(count));
  seqparCommParentRanks(next, parents.data());
  const std::string wrong = computeAgain(trial, next);
  return wrong.empty() && !trial.mayRemain(parents) ? "other members than the survivors" : wrong;
}

/// The survivors create a communicator with a new id and compute. "" or what went wrong.
std::string startAgain(const Trial& trial, int rank, const int (&ids)[2]) {
  const auto survivors = trial.survivors();
  const auto count = static_cast<int>(survivors.size());
  const auto place = static_cast<int>(std::find(survivors.begin(), survivors.end(), rank) - survivors.begin());
  seqparUniqueId id{};
  if (place == 0) {
    if (seqparGetUniqueId(&id) != seqparSuccess) return seqparGetLastError(nullptr);
    for (int other = 1; other < count; ++other) {
      if (write(ids[1], &id, sizeof(id)) != static_cast<ssize_t>(sizeof(id))) return "cannot send the id";
    }
  } else if (read(ids[0], &id, sizeof(id)) != static_cast<ssize_t>(sizeof(id))) {
    return "no id";
  }
  seqparComm_t comm = nullptr;
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  config.timeoutMs = kNoTimeoutMs;
  if (seqparCommInitRankConfig(&comm, count, id, place, &config) != seqparSuccess) return seqparGetLastError(nullptr);
  return computeAgain(trial, comm);
}

/// Calls while the process is short of memory or descriptors, until one fails. The caller's own allocations fail, too.
seqparResult_t callShort(const Trial& trial, RandomCalls& calls, Report& report) {
  const ShortOf limit(trial.is(Fault::Memory) ? ShortOf::What::Memory : ShortOf::What::Descriptors, trial.slackKib);
  try {
    for (int i = 0; i < kShortCalls; ++i) {
      if (const auto result = calls.next()) return result;
    }
  } catch (const std::exception&) {
    note(report, seqparSystemError, "the program has no memory");
    return seqparSystemError;
  }
  return seqparSuccess;
}

/// Calls until one fails; Success if the trial ends this rank's part without a failure.
seqparResult_t callUntilFailure(const Trial& trial, RandomCalls& calls, seqparComm_t comm, Report& report) {
  // A rank that fails before all are at work would fail another's start.
  const bool fails = trial.is(Fault::Leave) || trial.runsOut();
  auto result = fails ? seqparCommBarrier(comm) : seqparSuccess;
  const double begin = now();
  while (result == seqparSuccess && now() - begin < kMostSeconds) {
    if (trial.harmless() && calls.succeeded() == kCalm) break;
    if (fails && trial.isVictim(report.rank) && calls.succeeded() == trial.leaveAfter) {
      return trial.runsOut() ? callShort(trial, calls, report) : seqparSuccess;
    }
    result = calls.next();
  }
  return result;
}

std::string continueAfter(const Trial& trial, const int (&ids)[2], seqparComm_t comm, int rank) {
  const auto members = trial.members();
  const bool isMember = std::find(members.begin(), members.end(), rank) != members.end();
  if (trial.shrinks && isMember) return shrinkAndCompute(trial, comm);
  seqparCommAbort(comm);
  return isMember ? startAgain(trial, rank, ids) : "";
}

}  // namespace

void runRank(const Trial& trial, const int (&ids)[2], seqparComm_t comm, Report& report) {
  std::set_terminate([] { _exit(kTerminated); });
  RandomCalls calls(comm, trial.seed);
  const int rank = report.rank;
  const auto result = callUntilFailure(trial, calls, comm, report);
  report.scans = calls.succeeded();
  report.wrong = calls.wrong();
  if (report.result == seqparSuccess) note(report, result, calls.error());
  if (trial.harmless()) {
    if (result != seqparSuccess) return void(seqparCommAbort(comm));
    if (seqparCommDestroy(comm) != seqparSuccess) note(report, seqparRemoteError, seqparGetLastError(nullptr));
    return;
  }
  if (result == seqparSuccess && !trial.isVictim(rank)) return void(seqparCommAbort(comm));
  const bool shrinks = trial.shrinks && (!trial.isVictim(rank) || trial.runsOut());
  const std::string wrong = continueAfter(trial, ids, comm, rank);
  if (shrinks) seqparCommDestroy(comm);
  if (wrong.empty()) return;
  report.result = seqparInternalError;
  std::snprintf(report.text, sizeof(report.text), "on the new communicator: %.300s", wrong.c_str());
}

}  // namespace seqpar::test
