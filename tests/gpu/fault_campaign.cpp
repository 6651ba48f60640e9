// gpu_fault_campaign [--seconds S] [--seed S] [--ranks N] [--spares N] [--timeout MS] [--memory 1] [--nccl 1] [--json
// FILE]: random faults on GPUs. Each job has 2 to N processes, which issue scans, layers of linear attention and, with
// a GPU each, captured graphs. Faults follow one another in one job: after each, the survivors must return an error
// that names the victim, shrink the communicator, and compute correctly on the new one. One fault is one trial.
// --memory 1: a rank may also run out of device memory. --nccl 1: NCCL carries what ranks exchange. Exit status 77
// with fewer than two GPUs, unless --ranks is given.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "common/draw_seed.h"
#include "gpu/fault_campaign_workers.h"
#include "gpu/support/count_gpus.h"
#include "gpu/support/device_backend.h"

using namespace seqpar::test;

namespace {

constexpr double kHungSeconds = 15;  ///< A rank without progress for so long hangs.

struct Row {
  long trials = 0, survivors = 0, wrong = 0, hung = 0, failed = 0;
  double latest = 0, shrink = 0;
};
using Rows = std::array<Row, kFaultNames.size()>;

/// The parent's part of a job.
class JobRun {
 public:
  JobRun(const JobPlan& plan, Workers& workers, JobState& shared, Rows& rows, std::FILE* json)
      : plan_(plan), workers_(workers), shared_(*new (&shared) JobState), rows_(rows), json_(json) {}
  JobRun(const JobRun&) = delete;
  JobRun& operator=(const JobRun&) = delete;
  ~JobRun() {
    for (const int place : places_) {
      if (!workers_.isIdle(place) || workers_.status(place) >= 0) workers_.replace(place);
    }
  }

  bool run() {
    if (plan_.starves && !workers_.awaitIdle()) return report(0, "a process does not start");
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      living_.push_back(rank);
      const int place = workers_.start(rank, plan_.seed);
      if (place < 0) return report(0, "a process does not start");
      places_.push_back(place);
    }
    bool good = waitForWork(0);
    for (size_t i = 0; i < plan_.steps.size() && good; ++i) good = runStep(i);
    return good && end();
  }

 private:
  int placeOf(int rank) const { return places_[static_cast<size_t>(rank)]; }

  /// Until all members compute on the communicator of a step. False, with a line, if one ended or hangs.
  bool waitForWork(size_t step) {
    const double until = now() + kHungSeconds;
    while (shared_.working[step] < static_cast<int>(living_.size())) {
      for (const int rank : living_) {
        if (workers_.status(placeOf(rank)) >= 0) return report(step, "rank " + std::to_string(rank) + " ended");
      }
      if (now() > until) {
        hung_ = true;
        return report(step, "a rank hangs");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  bool report(size_t step, const std::string& why) {
    std::printf("seed %llu, step %zu, %zu ranks, %s: %s\n", static_cast<unsigned long long>(plan_.seed), step,
                living_.size(), step == 0 ? "start" : kFaultNames[static_cast<size_t>(plan_.steps[step - 1].fault)],
                why.c_str());
    for (const int rank : living_) {
      const auto* const text = shared_.problems[static_cast<size_t>(rank)].text;
      if (text[0] != '\0') std::printf("  rank %d: %s\n", rank, text);
    }
    return false;
  }

  bool runStep(size_t number) {
    const Step& step = plan_.steps[number];
    usleep(static_cast<useconds_t>(step.delayUs));
    const auto before = living_;
    const double begin = now();
    switch (step.fault) {
      case Fault::Kill:
        workers_.signal(placeOf(step.victim), SIGKILL);
        break;
      case Fault::Abort:
        workers_.signal(placeOf(step.victim), SIGABRT);
        break;
      case Fault::Stop:
        workers_.signal(placeOf(step.victim), SIGSTOP);
        break;
      default:
        shared_.order[static_cast<size_t>(step.victim)] = static_cast<int>(step.fault) + 1;
    }
    if (JobPlan::excludes(step.fault)) living_.erase(std::find(living_.begin(), living_.end(), step.victim));
    bool good = waitForWork(number + 1);
    if (step.fault == Fault::Stop) workers_.signal(placeOf(step.victim), SIGCONT);
    Row& row = rows_[static_cast<size_t>(step.fault)];
    ++row.trials;
    const auto place = std::find(before.begin(), before.end(), step.victim) - before.begin();
    const std::string name = "rank " + std::to_string(place);
    double latest = 0, shrink = 0;
    for (const int rank : living_) {
      const Outcome& outcome = shared_.outcomes[number][static_cast<size_t>(rank)];
      ++row.survivors;
      latest = std::max(latest, outcome.failedAt - begin);
      shrink = std::max(shrink, outcome.shrinkSeconds);
      const std::string text = outcome.text;
      if (good && rank != step.victim && text.find(name) == std::string::npos) {
        good = report(number + 1, "rank " + std::to_string(rank) + " names no victim: " + text);
      }
      if (good && outcome.members != static_cast<int>(living_.size())) good = report(number + 1, "other members");
    }
    row.latest = std::max(row.latest, latest);
    row.shrink = std::max(row.shrink, shrink);
    long wrong = 0;
    for (auto& one : shared_.wrong) wrong += one.exchange(0);
    row.wrong += wrong;
    row.hung += hung_ ? 1 : 0;
    row.failed += good ? 0 : 1;
    if (json_ != nullptr) {
      std::fprintf(
          json_,
          "{\"seed\": %llu, \"step\": %zu, \"fault\": \"%s\", \"ranks\": %zu, \"survivors\": %zu, \"keeps\": %s, "
          "\"error_ms\": %.1f, \"shrink_ms\": %.1f, \"wrong\": %ld, \"hung\": %d, \"ok\": %s}\n",
          static_cast<unsigned long long>(plan_.seed), number, kFaultNames[static_cast<size_t>(step.fault)],
          before.size(), living_.size(), plan_.keeps ? "true" : "false", 1e3 * latest, 1e3 * shrink, wrong,
          hung_ ? 1 : 0, good ? "true" : "false");
      std::fflush(json_);
    }
    return good;
  }

  /// Woken and hung victims end first; then the survivors.
  bool end() {
    const auto waitFor = [&](int rank) {
      const double until = now() + kHungSeconds;
      const int place = placeOf(rank);
      while (!workers_.isIdle(place) && workers_.status(place) < 0) {
        if (now() > until) return report(plan_.steps.size(), "rank " + std::to_string(rank) + " does not end");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const int status = workers_.status(place);
      if (status < 0 || (WIFSIGNALED(status) && isKilled(rank))) return true;
      const auto* const text = shared_.problems[static_cast<size_t>(rank)].text;
      return report(plan_.steps.size(),
                    "rank " + std::to_string(rank) + " ended with status " + std::to_string(status) + ": " + text);
    };
    bool good = true;
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      if (std::find(living_.begin(), living_.end(), rank) == living_.end()) good = waitFor(rank) && good;
    }
    shared_.finish = true;
    for (const int rank : living_) good = waitFor(rank) && good;
    if (!good) ++rows_[static_cast<size_t>(plan_.steps.back().fault)].failed;
    return good;
  }

  bool isKilled(int rank) const {
    return std::any_of(plan_.steps.begin(), plan_.steps.end(), [&](const Step& step) {
      return step.victim == rank && (step.fault == Fault::Kill || step.fault == Fault::Abort);
    });
  }

  const JobPlan& plan_;
  Workers& workers_;
  JobState& shared_;
  Rows& rows_;
  std::FILE* json_;
  std::vector<int> living_, places_;  ///< by rank
  bool hung_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.seed = drawSeed();
  std::FILE* json = nullptr;
  bool given = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    const long value = std::atol(argv[i + 1]);
    if (option == "--seconds") options.seconds = std::atof(argv[i + 1]);
    if (option == "--seed") options.seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--ranks") options.ranks = std::min(static_cast<int>(value), kMostRanks);
    if (option == "--ranks") given = true;
    if (option == "--spares") options.spares = static_cast<int>(value);
    if (option == "--timeout") options.timeoutMs = static_cast<int>(value);
    if (option == "--memory") options.starves = value != 0;
    if (option == "--nccl") options.nccl = value != 0;
    if (option == "--json") json = std::fopen(argv[i + 1], "a");
  }
  options.gpus = countGpus();
  if (options.gpus < (given ? 1 : 2)) {
    std::printf("skipped: 2 GPUs needed, %d found\n", options.gpus);
    return kSkipped;
  }
  if (!given) options.ranks = std::min(options.ranks, options.gpus);
  if (options.shares()) options.starves = false;  // all ranks of a GPU would starve
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("gpu_fault_campaign --seconds %.0f --seed %llu --ranks %d on %d GPUs\n", options.seconds,
              static_cast<unsigned long long>(options.seed), options.ranks, options.gpus);
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  expect(memory != MAP_FAILED, "mmap failed");
  auto& shared = *new (memory) Shared;
  Rows rows{};
  bool good = true;
  long jobs = 0;
  {
    Workers workers(options, shared);
    for (const double begin = now(); now() - begin < options.seconds; ++jobs) {
      const JobPlan plan(options.seed + static_cast<uint64_t>(jobs), options);
      good = JobRun(plan, workers, shared.job, rows, json).run() && good;
    }
  }
  std::printf("%ld jobs\n%-26s %8s %10s %12s %15s %8s %8s %8s\n", jobs, "fault", "trials", "survivors", "latest error",
              "longest shrink", "wrong", "hung", "failed");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::printf("%-26s %8ld %10ld %9.1f ms %12.1f ms %8ld %8ld %8ld\n", kFaultNames[i], row.trials, row.survivors,
                1e3 * row.latest, 1e3 * row.shrink, row.wrong, row.hung, row.failed);
  }
  return good ? 0 : 1;
}
