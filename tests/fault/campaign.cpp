// campaign [--trials N] [--seconds S] [--seed S] [--fault NAME] [--json FILE] [--hosts ...]: random faults in jobs of
// random calls on hosts. In each trial 2 to 5 processes issue random calls; some of them are killed, stopped, abort, or
// run out of memory, at a random time. Every survivor must return an error that names a victim, no output may be wrong
// with success, and a new communicator of the survivors, by seqparCommShrink or a new id, in the same processes, must
// compute correctly, also while a stopped process wakes. With --hosts (tests/net/campaign.sh) the ranks are on two
// hosts, and the link between them is cut. A seed repeats a trial; --fault leaves out the seeds of other faults.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "campaign_rank.h"
#include "common/draw_seed.h"
#include "common/timeouts.h"
#include "hosts.h"

using namespace seqpar::test;

namespace {

constexpr int kStopTimeout = 1000;  ///< ms, if the timeout decides
constexpr useconds_t kShortCut = 300000;
constexpr double kHungSeconds = 180;  ///< A rank without a report for so long hangs.

struct Row {
  long trials = 0, survivors = 0, wrong = 0, failed = 0, hung = 0, died = 0;
  double latest = 0, sum = 0;
};

bool namesVictim(const Trial& trial, const std::string& text) {
  // The first rank that a wait misses after a cut may be on the near side: it waits for one of the far side.
  if (trial.is(Fault::Cut)) return text.find("rank ") != std::string::npos;
  // A rank without memory may fail a step of all ranks, and the next that one hears of is another rank that gives up.
  if (trial.runsOut()) return text.find("rank ") != std::string::npos;
  return std::any_of(trial.victims.begin(), trial.victims.end(),
                     [&](int rank) { return text.find("rank " + std::to_string(rank)) != std::string::npos; });
}

bool namesCall(const std::string& text) {
  return text.starts_with("seqpar") || text == "the program has no memory";
}

/// One run of a trial.
class Run {
 public:
  Run(const Trial& trial, const Hosts* hosts, int timeoutMs, Row& row)
      : trial_(trial), hosts_(hosts), timeoutMs_(timeoutMs), row_(row) {
    if (pipe(ids_) != 0) std::abort();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() {
    if (trial_.is(Fault::Cut)) hosts_->heal();
    for (const int file : ids_) close(file);
  }

  /// "" or what went wrong.
  std::string run() {
    const auto start = [this](int rank) {
      return hosts_ == nullptr ? fork() : hosts_->fork(trial_.hosts[static_cast<size_t>(rank)]);
    };
    Job job(
        trial_.ranks, trial_.stops() ? timeoutMs_ : kNoTimeoutMs,
        [this](seqparComm_t comm, Report& report) { runRank(trial_, ids_, comm, report); }, start);
    if (!job.running()) wrong_ = "a rank did not start";
    usleep(static_cast<useconds_t>(trial_.delayUs));
    since_ = now();
    inject(job);
    const auto survivors = trial_.survivors();
    judge(job.reports(survivors, kHungSeconds), survivors.size());
    if (trial_.is(Fault::Cut)) hosts_->heal();
    if (trial_.stops() || trial_.runsOut()) judgeVictims(job, job.reports(trial_.victims, kHungSeconds));
    return wrong_;
  }

 private:
  void signalVictims(const Job& job, int number) const {
    for (const int rank : trial_.victims) job.signal(rank, number);
  }

  void inject(const Job& job) {
    switch (trial_.fault) {
      case Fault::Kill:
      case Fault::KillHost:
        return signalVictims(job, SIGKILL);
      case Fault::Abort:
        return signalVictims(job, SIGABRT);
      case Fault::Pause:
        signalVictims(job, SIGSTOP);
        usleep(20000);
        return signalVictims(job, SIGCONT);
      case Fault::Stop:
        signalVictims(job, SIGSTOP);
        // A stopped rank wakes only when the survivors have noticed: one that wakes at the timeout may fail no call.
        usleep(2 * static_cast<useconds_t>(timeoutMs_) * 1000 + static_cast<useconds_t>(trial_.delayUs));
        return signalVictims(job, SIGCONT);
      case Fault::ShortCut:
        hosts_->cut();
        usleep(kShortCut);
        return hosts_->heal();
      case Fault::Cut:
        return hosts_->cut();
      default:
        return;  // the victims fail by themselves
    }
  }

  void judge(const std::vector<Report>& reports, size_t count) {
    if (reports.size() != count) {
      row_.hung += static_cast<long>(count - reports.size());
      fail("a survivor ended or hung without a report");
    }
    const bool fails = !trial_.harmless();
    for (const auto& report : reports) {
      const std::string text(report.text);
      const std::string which = "rank " + std::to_string(report.rank) + ": ";
      row_.wrong += report.wrong;
      if (report.wrong > 0) fail(which + "a wrong output with success");
      // Without memory a rank can fail in a step that all ranks take together, with its result on all of them.
      const bool shared = trial_.runsOut() && report.result != seqparSuccess && report.result != seqparInternalError;
      const bool expected = report.result == (fails ? seqparRemoteError : seqparSuccess) || shared;
      if (!expected) fail(which + "result " + std::to_string(report.result) + ": " + text);
      if (fails && !namesVictim(trial_, text)) fail(which + "names no victim: " + text);
      if (fails && !namesCall(text)) fail(which + "names no call: " + text);
      ++row_.survivors;
      // A victim that fails by itself does so after the time of a signal.
      const bool timed = fails && !trial_.is(Fault::Leave) && !trial_.runsOut();
      const double took = timed ? report.failedAt - since_ : 0;
      row_.latest = std::max(row_.latest, took);
      row_.sum += took;
    }
  }

  void judgeVictims(const Job& job, const std::vector<Report>& reports) {
    for (const auto& report : reports) {
      const std::string text(report.text);
      row_.wrong += report.wrong;
      if (report.wrong > 0) fail("a victim has a wrong output with success");
      if (!trial_.runsOut() || report.result == seqparSuccess) continue;
      // Without memory it may be unable to vote.
      const bool left = text.find("excluded") != std::string::npos || text.find("vote ended") != std::string::npos;
      if (report.result == seqparInternalError && !left) fail("the victim: " + text);
      if (report.result != seqparInternalError && !namesCall(text)) fail("the victim names no call: " + text);
    }
    if (reports.size() == trial_.victims.size()) return;
    const auto ending = job.ending(trial_.victims.front());
    // UCX ends a process in which it gets no memory.
    if (trial_.is(Fault::Memory) && ending && ending->code != CLD_EXITED && ending->status == SIGABRT) {
      ++row_.died;
      return;
    }
    ++row_.hung;
    fail(!ending ? "a victim hung" : "a victim ended by itself, " + std::to_string(ending->status));
  }

  void fail(const std::string& why) {
    if (wrong_.empty()) wrong_ = why;
  }

  const Trial& trial_;
  const Hosts* hosts_;
  int timeoutMs_;
  Row& row_;
  int ids_[2] = {-1, -1};  ///< for unique ids, from the first survivor to the others
  double since_ = 0;
  std::string wrong_;
};

struct Options {
  long trials = 20;
  double seconds = 1e9;
  uint64_t seed = drawSeed();
  std::string fault;  ///< empty: all
  std::FILE* json = nullptr;
  std::optional<Hosts> hosts;
};

/// Adds to `row`; false if something went wrong.
bool runTrial(const Options& options, uint64_t seed, Row& row) {
  const Trial trial(seed, options.hosts.has_value());
  const Hosts* const hosts = options.hosts ? &*options.hosts : nullptr;
  Row own;
  const double begin = now();
  const auto attempt = [&](int timeoutMs) {
    own = Row{};
    std::string why = Run(trial, hosts, timeoutMs, own).run();
    if (!why.empty() && trial.stops()) {
      std::printf("seed %llu, timeout %d ms: %s\n", static_cast<unsigned long long>(seed), timeoutMs, why.c_str());
    }
    return why;
  };
  // On a busy machine a healthy rank may be silent for longer than a short timeout.
  const std::string wrong = trial.stops() ? withGrowingTimeout(kStopTimeout, attempt) : attempt(0);
  const char* const name = kFaultNames[static_cast<size_t>(trial.fault)];
  if (!wrong.empty()) {
    std::printf("seed %llu, %d ranks, %s: %s\n", static_cast<unsigned long long>(seed), trial.ranks, name,
                wrong.c_str());
  }
  if (options.json != nullptr) {
    std::fprintf(
        options.json,
        "{\"seed\": %llu, \"fault\": \"%s\", \"ranks\": %d, \"survivors\": %ld, \"shrinks\": %s, \"ms\": %.1f, "
        "\"latest_ms\": %.1f, \"wrong\": %ld, \"hung\": %ld, \"ok\": %s}\n",
        static_cast<unsigned long long>(seed), name, trial.ranks, own.survivors, trial.shrinks ? "true" : "false",
        1e3 * (now() - begin), 1e3 * own.latest, own.wrong, own.hung, wrong.empty() ? "true" : "false");
    std::fflush(options.json);
  }
  ++row.trials;
  row.survivors += own.survivors;
  row.wrong += own.wrong;
  row.hung += own.hung;
  row.died += own.died;
  row.failed += wrong.empty() ? 0 : 1;
  row.sum += own.sum;
  row.latest = std::max(row.latest, own.latest);
  return wrong.empty();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--trials") options.trials = std::atol(argv[i + 1]);
    if (option == "--seconds") options.seconds = std::atof(argv[i + 1]);
    if (option == "--seed") options.seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--fault") options.fault = argv[i + 1];
    if (option == "--hosts") options.hosts.emplace(argv[i + 1]);
    if (option == "--json") options.json = std::fopen(argv[i + 1], "a");
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("campaign --trials %ld --seed %llu\n", options.trials, static_cast<unsigned long long>(options.seed));
  std::array<Row, kFaultNames.size()> rows{};
  bool good = true;
  const double begin = now();
  uint64_t seed = options.seed;
  for (long done = 0; done < options.trials && now() - begin < options.seconds; ++seed) {
    const auto fault = static_cast<size_t>(Trial(seed, options.hosts.has_value()).fault);
    if (!options.fault.empty() && options.fault != kFaultNames[fault]) continue;
    good = runTrial(options, seed, rows[fault]) && good;
    ++done;
  }
  if (options.json != nullptr) std::fclose(options.json);
  std::printf("%-26s %8s %10s %12s %12s %8s %8s %8s %8s\n", "fault", "trials", "survivors", "mean error", "latest",
              "wrong", "died", "hung", "failed");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (row.trials == 0) continue;
    std::printf("%-26s %8ld %10ld %9.1f ms %9.1f ms %8ld %8ld %8ld %8ld\n", kFaultNames[i], row.trials, row.survivors,
                row.survivors == 0 ? 0 : 1e3 * row.sum / static_cast<double>(row.survivors), 1e3 * row.latest,
                row.wrong, row.died, row.hung, row.failed);
  }
  return good ? 0 : 1;
}
