// shrink [--trials N] [--seed S]: random faults, after each of which the survivors shrink the communicator and go on in
// the same processes. In each trial 2 to 5 processes issue random calls. Processes are killed or stopped one after the
// other, also during a shrink, or one revokes the communicator. The survivors must end up in a communicator with
// exactly the living ranks, in their order, that computes correctly; a stopped process that wakes must be excluded.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
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

enum class Fault { Kill, Stop, Wake, Revoke, Deadlock };
constexpr std::array kNames{"SIGKILL", "SIGSTOP", "SIGSTOP, SIGCONT in the vote", "seqparCommRevoke", "half silent"};
constexpr int kAgain = 20;  ///< calls on the last communicator
constexpr int kStopTimeout = 600;
constexpr double kMostSeconds = 120;
constexpr int kNoFailure = 300;  ///< calls after which a woken rank was not missed

struct Trial {
  explicit Trial(uint64_t number) : seed(number) {
    std::mt19937_64 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % static_cast<uint64_t>(end)); };
    ranks = 2 + below(4);
    const int drawn = below(20);
    fault = drawn < 14   ? Fault::Kill
            : drawn < 16 ? Fault::Revoke
            : drawn < 18 ? Fault::Stop
            : drawn < 19 ? Fault::Wake
                         : Fault::Deadlock;
    if (fault == Fault::Deadlock) ranks = 2 + 2 * below(2);
    if (fault == Fault::Stop || fault == Fault::Wake) ranks = 3 + below(3);
    const int most = fault == Fault::Kill ? ranks - 1 : fault == Fault::Stop ? (ranks - 1) / 2 : 1;
    int count = fault == Fault::Deadlock ? ranks / 2 : 1 + below(most);
    for (; count > 0; --count) {
      int victim = below(ranks);
      while (isVictim(victim)) victim = (victim + 1) % ranks;
      victims.push_back(victim);
      constexpr int kGaps[] = {1, 4000, 60000};
      delaysUs.push_back(below(victims.size() == 1 ? 20000 : kGaps[below(3)]));
    }
    keeps = below(2) == 0;
    wakeUs = below(kStopTimeout * 1000);
  }

  bool isVictim(int rank) const { return std::find(victims.begin(), victims.end(), rank) != victims.end(); }
  bool stops() const { return fault == Fault::Stop || fault == Fault::Wake || fault == Fault::Deadlock; }
  std::vector<int> survivors() const {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) {
      if (fault == Fault::Revoke || !isVictim(rank)) all.push_back(rank);
    }
    return all;
  }

  uint64_t seed;
  int ranks = 2, wakeUs = 0;
  Fault fault = Fault::Kill;
  bool keeps = false;  ///< lost communicators are destroyed at the end only
  std::vector<int> victims, delaysUs;
};

/// Processes tell the parent that they are done, and wait until they may end.
struct Gates {
  int done[2] = {-1, -1}, end[2] = {-1, -1};
};

/// One rank's communicators, from the first to the latest.
class Chain {
 public:
  Chain(const Trial& trial, seqparComm_t first, Report& report) : trial_(trial), report_(report), comms_{first} {
    for (int rank = 0; rank < trial.ranks; ++rank) members_.push_back(rank);
  }

  seqparComm_t latest() const { return comms_.back(); }
  const std::vector<int>& members() const { return members_; }
  int shrinks() const { return shrinks_; }

  bool shrink() {
    seqparComm_t next = nullptr;
    const double begin = now();
    const auto result = seqparCommShrink(latest(), nullptr, &next);
    report_.failedAt = std::max(report_.failedAt, now() - begin);
    if (result != seqparSuccess) return fail(result, seqparGetLastError(latest()));
    int count = 0, rank = -1;
    seqparCommCount(next, &count);
    seqparCommUserRank(next, &rank);
    std::vector<int> parents(static_cast<size_t>(count), -1), members;
    seqparCommParentRanks(next, parents.data());
    for (const int parent : parents) {
      if (parent < 0 || static_cast<size_t>(parent) >= members_.size())
        return fail(seqparInternalError, "parent ranks");
      members.push_back(members_[static_cast<size_t>(parent)]);
    }
    if (!std::is_sorted(members.begin(), members.end()) || members[static_cast<size_t>(rank)] != report_.rank) {
      return fail(seqparInternalError, "the order of the new ranks");
    }
    members_ = members;
    ++shrinks_;
    if (!trial_.keeps && seqparCommDestroy(latest()) != seqparSuccess) return fail(seqparInternalError, "destroy");
    if (!trial_.keeps) comms_.clear();
    comms_.push_back(next);
    return true;
  }

  bool fail(seqparResult_t result, const std::string& text) {
    report_.result = result;
    std::snprintf(report_.text, sizeof(report_.text), "%.390s", text.c_str());
    return false;
  }

  /// Destroys all communicators, collectively the latest one.
  void end(bool agreed) {
    if (agreed && seqparCommDestroy(latest()) != seqparSuccess) fail(seqparInternalError, seqparGetLastError(nullptr));
    if (!agreed) seqparCommAbort(latest());
    comms_.pop_back();
    for (auto* comm : comms_) seqparCommDestroy(comm);
  }

 private:
  const Trial& trial_;
  Report& report_;
  std::vector<seqparComm_t> comms_;
  std::vector<int> members_;
  int shrinks_ = 0;
};

void work(const Trial& trial, const Gates& gates, seqparComm_t comm, Report& report) {
  Chain chain(trial, comm, report);
  report.failedAt = 0;
  const auto survivors = trial.survivors();
  const double begin = now();
  // After a wake, whether the woken rank is a member depends on the time.
  const auto isLast = [&] {
    return trial.fault == Fault::Wake || trial.fault == Fault::Revoke ? chain.shrinks() > 0
                                                                      : chain.members() == survivors;
  };
  // Half silent: woken ranks may go on alone, as the others have resigned.
  const auto isDecided = [&] { return trial.fault == Fault::Deadlock && chain.shrinks() > 0; };
  bool good = true;
  while (good && !isDecided()) {
    const auto& members = chain.members();
    if (trial.fault != Fault::Wake && trial.fault != Fault::Deadlock &&
        !std::includes(members.begin(), members.end(), survivors.begin(), survivors.end())) {
      good = chain.fail(seqparInternalError, "a living rank was left out");
      break;
    }
    RandomCalls calls(chain.latest(),
                      trial.seed + chain.members().size() + 100 * static_cast<uint64_t>(chain.members().front()));
    const bool last = isLast();
    // A rank that revoked before all are at work would fail another's start.
    const bool starts = trial.fault == Fault::Revoke && chain.shrinks() == 0;
    auto result = starts ? seqparCommBarrier(chain.latest()) : seqparSuccess;
    const auto isOver = [&] {
      return (last && calls.succeeded() == kAgain) || (trial.fault == Fault::Wake && calls.succeeded() == kNoFailure);
    };
    while (result == seqparSuccess && now() - begin < kMostSeconds && !isOver()) {
      const bool revokes = trial.fault == Fault::Revoke && !last && trial.isVictim(report.rank);
      if (revokes && calls.succeeded() == trial.delaysUs[0] % 40) {
        result = seqparCommRevoke(chain.latest());
        break;
      }
      result = calls.next();
    }
    report.scans += calls.succeeded();
    report.wrong += calls.wrong();
    if (result == seqparSuccess && isOver()) break;
    if (last && result != seqparRemoteError) {
      good = chain.fail(result, std::string("on the last communicator: ") + seqparGetLastError(chain.latest()));
    } else if (now() - begin >= kMostSeconds) {
      good = chain.fail(seqparInternalError, "no failure was noticed");
    } else {
      good = chain.shrink();
    }
  }
  if (trial.stops()) {
    // Lost communicators answer a woken rank until the end.
    [[maybe_unused]] const auto written = write(gates.done[1], "", 1);
    char byte = 0;
    [[maybe_unused]] const auto passed = read(gates.end[0], &byte, 1);
  }
  chain.end(good && trial.fault != Fault::Wake);
}

struct Row {
  long trials = 0, survivors = 0, wrong = 0, failed = 0;
  double latest = 0;
};

/// "" or what is wrong about a survivor's report.
std::string judge(const Trial& trial, const Report& report, Row& row) {
  const std::string text(report.text), which = "rank " + std::to_string(report.rank) + ": ";
  row.wrong += report.wrong;
  ++row.survivors;
  row.latest = std::max(row.latest, report.failedAt);
  if (report.wrong > 0) return which + "a wrong output with success";
  if (trial.fault == Fault::Deadlock) {
    const bool refused = report.result == seqparRemoteError && text.find("no quorum") != std::string::npos;
    return refused ? "" : which + "expected no quorum: " + text;
  }
  return report.result == seqparSuccess ? "" : which + text;
}

std::string run(const Trial& trial, int timeoutMs, Row& row) {
  Gates gates;
  if (pipe(gates.done) != 0 || pipe(gates.end) != 0) return "no pipe";
  const auto survivors = trial.survivors();
  std::string wrong;
  {
    Job job(trial.ranks, trial.stops() ? timeoutMs : kNoTimeoutMs,
            [&](seqparComm_t comm, Report& report) { work(trial, gates, comm, report); });
    if (!job.running()) wrong = "a rank did not start";
    for (size_t i = 0; i < trial.victims.size() && trial.fault != Fault::Revoke; ++i) {
      usleep(static_cast<useconds_t>(trial.delaysUs[i]));
      job.signal(trial.victims[i], trial.stops() ? SIGSTOP : SIGKILL);
    }
    const auto wake = [&] {
      for (const int rank : trial.victims) job.signal(rank, SIGCONT);
    };
    if (trial.fault == Fault::Wake) {
      usleep(static_cast<useconds_t>(1200 * timeoutMs + trial.wakeUs));
      wake();
    }
    if (trial.stops()) {
      const size_t waiting = trial.fault == Fault::Wake ? static_cast<size_t>(trial.ranks) : survivors.size();
      char byte = 0;
      for (size_t i = 0; i < waiting; ++i) {
        if (read(gates.done[0], &byte, 1) != 1) return "no end";
      }
      wake();
      // The woken ranks report at the same gate.
      for (size_t i = waiting; i < static_cast<size_t>(trial.ranks); ++i) {
        if (read(gates.done[0], &byte, 1) != 1) return "no end";
      }
      for (int rank = 0; rank < trial.ranks; ++rank) {
        if (write(gates.end[1], "", 1) != 1) return "no gate";
      }
    }
    const auto reports = job.reports(survivors);
    if (reports.size() != survivors.size() && wrong.empty()) {
      wrong = "a survivor ended without a report";
      for (const int rank : survivors) {
        const auto ending = job.ending(rank);
        if (ending && ending->code != CLD_EXITED) wrong += ", signal " + std::to_string(ending->status);
      }
    }
    for (const auto& report : reports) {
      const std::string why = judge(trial, report, row);
      if (wrong.empty()) wrong = why;
    }
    for (const auto& report : trial.fault == Fault::Stop ? job.reports(trial.victims) : std::vector<Report>()) {
      row.wrong += report.wrong;
      const bool excluded = std::string(report.text).find("excluded") != std::string::npos;
      if (wrong.empty() && (report.wrong > 0 || !excluded)) wrong = std::string("the woken rank: ") + report.text;
    }
  }
  for (const int file : {gates.done[0], gates.done[1], gates.end[0], gates.end[1]}) close(file);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  long trials = 20;
  uint64_t seed = drawSeed();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--trials") trials = std::atol(argv[i + 1]);
    if (option == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("shrink --trials %ld --seed %llu\n", trials, static_cast<unsigned long long>(seed));
  std::array<Row, kNames.size()> rows{};
  for (long i = 0; i < trials; ++i) {
    const Trial trial(seed + static_cast<uint64_t>(i));
    Row& row = rows[static_cast<size_t>(trial.fault)];
    ++row.trials;
    // On a busy machine a healthy rank may be silent for longer than a short timeout.
    const std::string wrong = trial.stops()
                                  ? withGrowingTimeout(kStopTimeout, [&](int ms) { return run(trial, ms, row); })
                                  : run(trial, 0, row);
    if (wrong.empty()) continue;
    ++row.failed;
    std::printf("seed %llu, %d ranks, %zu victims, %s: %s\n", static_cast<unsigned long long>(trial.seed), trial.ranks,
                trial.victims.size(), kNames[static_cast<size_t>(trial.fault)], wrong.c_str());
  }
  std::printf("%-30s %8s %10s %15s %8s %8s\n", "fault", "trials", "survivors", "longest shrink", "wrong", "failed");
  long failed = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    failed += row.failed;
    std::printf("%-30s %8ld %10ld %12.1f ms %8ld %8ld\n", kNames[i], row.trials, row.survivors, 1e3 * row.latest,
                row.wrong, row.failed);
  }
  return failed == 0 ? 0 : 1;
}
