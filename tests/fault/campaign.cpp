// campaign [--trials N] [--seed S] [--json FILE]: random faults in jobs of random calls on hosts. In each trial 2 to 5
// processes issue random calls; some of them are killed, stopped, or abort, at a random time. Every survivor must
// return an error that names a victim, no output may be wrong with success, and a new communicator of the survivors, by
// seqparCommShrink or a new id, in the same processes, must compute correctly, also while a stopped process wakes. A
// seed repeats a trial.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/draw_seed.h"
#include "common/timeouts.h"
#include "random_calls.h"
#include "seqpar/shrink.h"
#include "survivors.h"

using namespace seqpar::test;

namespace {

enum class Fault { Kill, Abort, Stop, Pause, Leave };
constexpr std::array kNames{"SIGKILL", "abort()", "SIGSTOP", "SIGSTOP, SIGCONT in time", "seqparCommAbort"};
constexpr int kAgain = 20;            ///< calls on the new communicator
constexpr int kStopTimeout = 1000;    ///< ms, for stopped ranks
constexpr double kMostSeconds = 120;  ///< A job without a failure for so long has missed it.

struct Trial {
  explicit Trial(uint64_t number) : seed(number) {
    std::mt19937_64 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % static_cast<uint64_t>(end)); };
    ranks = 2 + below(4);
    // Half of the trials kill; stops cost their timeout.
    const int drawn = below(40);
    fault = drawn < 20   ? Fault::Kill
            : drawn < 28 ? Fault::Abort
            : drawn < 30 ? Fault::Stop
            : drawn < 34 ? Fault::Pause
                         : Fault::Leave;
    const int most = fault == Fault::Kill || fault == Fault::Abort ? ranks - 1 : 1;
    for (int left = 1 + (below(3) == 0 ? below(most) : 0); left > 0; --left) {
      int victim = below(ranks);
      while (isVictim(victim)) victim = (victim + 1) % ranks;
      victims.push_back(victim);
    }
    delayUs = below(30000);
    leaveAfter = below(30);
    // Half of two ranks cannot decide while the other one is silent.
    shrinks = below(2) == 0 && (fault != Fault::Stop || ranks > 2);
  }

  bool isVictim(int rank) const { return std::find(victims.begin(), victims.end(), rank) != victims.end(); }
  std::vector<int> survivors() const {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) {
      if (!isVictim(rank)) all.push_back(rank);
    }
    return all;
  }

  uint64_t seed;
  int ranks = 2, delayUs = 0, leaveAfter = 0;
  Fault fault = Fault::Kill;
  bool shrinks = false;  ///< the survivors shrink, else create a communicator with a new id
  std::vector<int> victims;
};

/// Calls on the communicator of the survivors. "" or what went wrong.
std::string computeAgain(const Trial& trial, seqparComm_t comm) {
  RandomCalls calls(comm, trial.seed + 1);
  std::string wrong;
  for (int i = 0; i < kAgain && wrong.empty(); ++i) {
    if (calls.next() != seqparSuccess) wrong = std::string(calls.latest()) + ": " + seqparGetLastError(comm);
  }
  if (calls.wrong() > 0) wrong = std::string(calls.latest()) + " was wrong";
  if (seqparCommDestroy(comm) != seqparSuccess && wrong.empty()) wrong = seqparGetLastError(nullptr);
  return wrong;
}

/// The survivors shrink `comm` and compute.
std::string shrinkAndCompute(const Trial& trial, seqparComm_t comm) {
  seqparComm_t next = nullptr;
  if (seqparCommShrink(comm, nullptr, &next) != seqparSuccess) return seqparGetLastError(comm);
  int count = 0;
  seqparCommCount(next, &count);
  const auto survivors = trial.survivors();
  std::vector<int> parents(static_cast<size_t>(count));
  seqparCommParentRanks(next, parents.data());
  const std::string wrong = computeAgain(trial, next);
  seqparCommDestroy(comm);
  return wrong.empty() && parents != survivors ? "other members than the survivors" : wrong;
}

/// The survivors create a communicator and compute. "" or what went wrong.
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

/// One rank's work until a call fails, and on a new communicator. A paused job has no failure: it ends by agreement.
void work(const Trial& trial, const int (&ids)[2], seqparComm_t comm, Report& report) {
  RandomCalls calls(comm, trial.seed);
  const int rank = report.rank;
  // A rank that left before all are at work would fail another's start.
  auto result = trial.fault == Fault::Leave ? seqparCommBarrier(comm) : seqparSuccess;
  const double begin = now();
  while (result == seqparSuccess && now() - begin < kMostSeconds) {
    if (trial.fault == Fault::Pause && calls.succeeded() == 200) break;
    if (trial.fault == Fault::Leave && trial.isVictim(rank) && calls.succeeded() == trial.leaveAfter) {
      report.scans = calls.succeeded();
      report.failedAt = now();
      seqparCommAbort(comm);
      return;
    }
    result = calls.next();
  }
  report.scans = calls.succeeded();
  report.wrong = calls.wrong();
  note(report, result, comm);
  if (result == seqparSuccess) {
    if (seqparCommDestroy(comm) != seqparSuccess) note(report, seqparRemoteError, nullptr);
    return;
  }
  const bool shrinks = trial.shrinks && !trial.isVictim(rank);
  if (!shrinks) seqparCommAbort(comm);
  if (trial.isVictim(rank)) return;
  const std::string wrong = shrinks ? shrinkAndCompute(trial, comm) : startAgain(trial, rank, ids);
  if (wrong.empty()) return;
  report.result = seqparInternalError;
  std::snprintf(report.text, sizeof(report.text), "on the new communicator: %.300s", wrong.c_str());
}

struct Row {
  long trials = 0, survivors = 0, wrong = 0, failed = 0;
  double latest = 0, sum = 0;
};

bool namesVictim(const Trial& trial, const std::string& text) {
  return std::any_of(trial.victims.begin(), trial.victims.end(),
                     [&](int rank) { return text.find("rank " + std::to_string(rank)) != std::string::npos; });
}

/// "" or what went wrong in one run of the trial.
std::string run(const Trial& trial, int timeoutMs, Row& row) {
  int ids[2];
  if (pipe(ids) != 0) return "no pipe";
  const bool stops = trial.fault == Fault::Stop;
  Job job(trial.ranks, stops ? timeoutMs : kNoTimeoutMs,
          [&](seqparComm_t comm, Report& report) { work(trial, ids, comm, report); });
  close(ids[1]);
  std::string wrong;
  if (!job.running()) wrong = "a rank did not start";
  usleep(static_cast<useconds_t>(trial.delayUs));
  const double since = now();
  constexpr std::array kSignals{SIGKILL, SIGABRT, SIGSTOP, SIGSTOP, 0};
  for (const int rank : trial.victims) job.signal(rank, kSignals[static_cast<size_t>(trial.fault)]);
  if (trial.fault == Fault::Pause) {
    usleep(20000);
    for (const int rank : trial.victims) job.signal(rank, SIGCONT);
  }
  // A stopped rank wakes only when the survivors have noticed: one that wakes at the timeout may fail no call.
  if (stops) {
    usleep(2 * static_cast<useconds_t>(timeoutMs) * 1000 + static_cast<useconds_t>(trial.delayUs));
    for (const int rank : trial.victims) job.signal(rank, SIGCONT);
  }
  const auto survivors = trial.survivors();
  const auto reports = job.reports(survivors);
  if (reports.size() != survivors.size() && wrong.empty()) wrong = "a survivor ended without a report";
  for (const auto& report : reports) {
    const bool fails = trial.fault != Fault::Pause;
    const std::string text(report.text);
    const std::string which = "rank " + std::to_string(report.rank) + ": ";
    row.wrong += report.wrong;
    if (report.wrong > 0) wrong = which + "a wrong output with success";
    if (report.result != (fails ? seqparRemoteError : seqparSuccess)) wrong = which + "result " + text;
    if (fails && wrong.empty() && !namesVictim(trial, text)) wrong = which + "names no victim: " + text;
    // A rank that leaves by itself does so after the signal's time.
    const double took = trial.fault == Fault::Leave || !fails ? 0 : report.failedAt - since;
    row.latest = std::max(row.latest, took);
    row.sum += took;
    ++row.survivors;
  }
  if (stops && wrong.empty()) {
    for (const auto& report : job.reports(trial.victims)) {
      row.wrong += report.wrong;
      if (report.wrong > 0) wrong = "the woken rank has a wrong output with success";
    }
  }
  close(ids[0]);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  long trials = 20;
  uint64_t seed = seqpar::test::drawSeed();
  std::FILE* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--trials") trials = std::atol(argv[i + 1]);
    if (option == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--json") json = std::fopen(argv[i + 1], "w");
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("campaign --trials %ld --seed %llu\n", trials, static_cast<unsigned long long>(seed));
  std::array<Row, kNames.size()> rows{};
  for (long i = 0; i < trials; ++i) {
    const Trial trial(seed + static_cast<uint64_t>(i));
    Row& row = rows[static_cast<size_t>(trial.fault)];
    ++row.trials;
    const double begin = now();
    // On a busy machine a healthy rank may be silent for longer than a short timeout.
    const std::string wrong = trial.fault == Fault::Stop
                                  ? withGrowingTimeout(kStopTimeout, [&](int ms) { return run(trial, ms, row); })
                                  : run(trial, 0, row);
    if (!wrong.empty()) {
      ++row.failed;
      std::printf("seed %llu, %d ranks, %s: %s\n", static_cast<unsigned long long>(trial.seed), trial.ranks,
                  kNames[static_cast<size_t>(trial.fault)], wrong.c_str());
    }
    if (json == nullptr) continue;
    std::fprintf(json,
                 "{\"seed\": %llu, \"fault\": \"%s\", \"ranks\": %d, \"survivors\": %zu, \"ms\": %.1f, \"ok\": %s}\n",
                 static_cast<unsigned long long>(trial.seed), kNames[static_cast<size_t>(trial.fault)], trial.ranks,
                 trial.survivors().size(), 1e3 * (now() - begin), wrong.empty() ? "true" : "false");
  }
  if (json != nullptr) std::fclose(json);
  std::printf("%-26s %8s %10s %12s %12s %8s %8s\n", "fault", "trials", "survivors", "mean error", "latest", "wrong",
              "failed");
  long failed = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    failed += row.failed;
    std::printf("%-26s %8ld %10ld %9.1f ms %9.1f ms %8ld %8ld\n", kNames[i], row.trials, row.survivors,
                row.survivors == 0 ? 0 : 1e3 * row.sum / static_cast<double>(row.survivors), 1e3 * row.latest,
                row.wrong, row.failed);
  }
  return failed == 0 ? 0 : 1;
}
