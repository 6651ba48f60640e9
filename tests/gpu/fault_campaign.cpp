// gpu_fault_campaign [--seconds S] [--seed S] [--ranks N] [--memory 1] [--json FILE]: random faults on GPUs. Each job
// has 2 to N processes, a GPU each, which issue scans, layers of linear attention and captured graphs. Faults follow
// one another in one job: after each, the survivors must return an error that names the victim, shrink the
// communicator, and compute correctly on the new one. One fault is one trial. --memory 1: a rank may also run out of
// device memory. Exit status 77 with fewer than two GPUs.
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
#include "gpu/fault_campaign_rank.h"
#include "gpu/support/count_gpus.h"
#include "gpu/support/device_backend.h"

using namespace seqpar::test;

namespace {

constexpr double kHungSeconds = 15;  ///< A rank without progress for so long hangs.

struct Row {
  long trials = 0, survivors = 0, wrong = 0, failed = 0;
  double latest = 0, shrink = 0;
};

/// The parent's part of a job; it never uses CUDA.
class JobRun {
 public:
  JobRun(const JobPlan& plan, std::array<Row, kFaultNames.size()>& rows, std::FILE* json)
      : plan_(plan), rows_(rows), json_(json) {
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(memory != MAP_FAILED, "mmap failed");
    shared_ = new (memory) Shared;
    for (int rank = 0; rank < plan.ranks; ++rank) living_.push_back(rank);
  }
  JobRun(const JobRun&) = delete;
  JobRun& operator=(const JobRun&) = delete;
  ~JobRun() {
    for (const pid_t process : processes_) kill(process, SIGKILL);
    for (const pid_t process : processes_) waitpid(process, nullptr, 0);
    munmap(shared_, sizeof(Shared));
  }

  bool run() {
    std::array<int, 2> ends{};
    expect(pipe(ends.data()) == 0, "pipe failed");
    for (int rank = 0; rank < plan_.ranks; ++rank) start(rank, ends[0]);
    seqparUniqueId id{};
    expectSuccess(seqparGetUniqueId(&id), "seqparGetUniqueId");
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      expect(write(ends[1], &id, sizeof(id)) == static_cast<ssize_t>(sizeof(id)), "write failed");
    }
    close(ends[0]);
    close(ends[1]);
    bool good = waitForWork(0);
    for (size_t i = 0; i < plan_.steps.size() && good; ++i) good = runStep(i);
    if (!good) return false;
    return end();
  }

 private:
  void start(int rank, int orders) {
    std::fflush(stdout);
    const pid_t process = fork();
    expect(process >= 0, "fork failed");
    if (process > 0) return processes_.push_back(process);
    seqparUniqueId id{};
    int status = 1;
    try {
      expect(read(orders, &id, sizeof(id)) == static_cast<ssize_t>(sizeof(id)), "no id");
      runRank(plan_, *shared_, rank, id);
      status = 0;
    } catch (const std::exception& error) {
      std::snprintf(shared_->problems[static_cast<size_t>(rank)].text, sizeof(Shared::Problem), "%.390s", error.what());
    }
    _exit(status);
  }

  /// Until all members compute on the communicator of a step. False, with a line, if one ended or hangs.
  bool waitForWork(size_t step) {
    const double until = now() + kHungSeconds;
    while (shared_->working[step] < static_cast<int>(living_.size())) {
      for (const int rank : living_) {
        siginfo_t info{};
        const auto process = static_cast<id_t>(processes_[static_cast<size_t>(rank)]);
        waitid(P_PID, process, &info, WEXITED | WNOHANG | WNOWAIT);
        if (info.si_pid != 0) return report(step, "rank " + std::to_string(rank) + " ended");
      }
      if (now() > until) return report(step, "a rank hangs");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  bool report(size_t step, const std::string& why) {
    std::printf("seed %llu, step %zu, %zu ranks, %s: %s\n", static_cast<unsigned long long>(plan_.seed), step,
                living_.size(), step == 0 ? "start" : kFaultNames[static_cast<size_t>(plan_.steps[step - 1].fault)],
                why.c_str());
    for (const int rank : living_) {
      const auto* const text = shared_->problems[static_cast<size_t>(rank)].text;
      if (text[0] != '\0') std::printf("  rank %d: %s\n", rank, text);
    }
    return false;
  }

  bool runStep(size_t number) {
    const Step& step = plan_.steps[number];
    usleep(static_cast<useconds_t>(step.delayUs));
    const auto before = living_;
    const auto victim = static_cast<size_t>(step.victim);
    const double begin = now();
    if (step.fault == Fault::Kill || step.fault == Fault::Stop) {
      kill(processes_[victim], step.fault == Fault::Kill ? SIGKILL : SIGSTOP);
    } else {
      shared_->order[victim] = static_cast<int>(step.fault) + 1;
    }
    if (JobPlan::excludes(step.fault)) living_.erase(std::find(living_.begin(), living_.end(), step.victim));
    bool good = waitForWork(number + 1);
    if (step.fault == Fault::Stop) kill(processes_[victim], SIGCONT);
    Row& row = rows_[static_cast<size_t>(step.fault)];
    ++row.trials;
    const auto place = std::find(before.begin(), before.end(), step.victim) - before.begin();
    const std::string name = "rank " + std::to_string(place);
    double latest = 0, shrink = 0;
    for (const int rank : living_) {
      const Outcome& outcome = shared_->outcomes[number][static_cast<size_t>(rank)];
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
    for (const int rank : living_) row.wrong += shared_->wrong[static_cast<size_t>(rank)];
    row.failed += good ? 0 : 1;
    if (json_ != nullptr) {
      std::fprintf(json_,
                   "{\"seed\": %llu, \"step\": %zu, \"fault\": \"%s\", \"ranks\": %zu, \"keeps\": %s, \"error_ms\": "
                   "%.1f, \"shrink_ms\": %.1f, \"ok\": %s}\n",
                   static_cast<unsigned long long>(plan_.seed), number, kFaultNames[static_cast<size_t>(step.fault)],
                   before.size(), plan_.keeps ? "true" : "false", 1e3 * latest, 1e3 * shrink, good ? "true" : "false");
      std::fflush(json_);
    }
    return good;
  }

  /// Woken and hung victims end first; then the survivors.
  bool end() {
    const auto waitFor = [&](int rank) {
      const double until = now() + kHungSeconds;
      int status = 0;
      while (waitpid(processes_[static_cast<size_t>(rank)], &status, WNOHANG) == 0) {
        if (now() > until) return report(plan_.steps.size(), "rank " + std::to_string(rank) + " does not end");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      processes_[static_cast<size_t>(rank)] = -1;
      const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      const bool good = killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
      if (good) return true;
      const auto* const text = shared_->problems[static_cast<size_t>(rank)].text;
      return report(plan_.steps.size(),
                    "rank " + std::to_string(rank) + " ended with status " + std::to_string(status) + ": " + text);
    };
    bool good = true;
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      if (std::find(living_.begin(), living_.end(), rank) == living_.end()) good = waitFor(rank) && good;
    }
    shared_->finish = true;
    for (const int rank : living_) good = waitFor(rank) && good;
    std::erase(processes_, -1);
    if (!good) ++rows_[static_cast<size_t>(plan_.steps.back().fault)].failed;
    return good;
  }

  const JobPlan& plan_;
  std::array<Row, kFaultNames.size()>& rows_;
  std::FILE* json_;
  Shared* shared_ = nullptr;
  std::vector<pid_t> processes_;
  std::vector<int> living_;
};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 30;
  uint64_t seed = drawSeed();
  int most = 4;
  bool starves = false;
  std::FILE* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--seconds") seconds = std::atof(argv[i + 1]);
    if (option == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--ranks") most = std::atoi(argv[i + 1]);
    if (option == "--memory") starves = std::atoi(argv[i + 1]) != 0;
    if (option == "--json") json = std::fopen(argv[i + 1], "a");
  }
  most = std::min({countGpus(), most, kMostRanks});
  if (most < 2) {
    std::printf("skipped: 2 GPUs needed, %d found\n", most);
    return kSkipped;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("gpu_fault_campaign --seconds %.0f --seed %llu --ranks %d\n", seconds,
              static_cast<unsigned long long>(seed), most);
  std::array<Row, kFaultNames.size()> rows{};
  bool good = true;
  long jobs = 0;
  for (const double begin = now(); now() - begin < seconds; ++jobs) {
    const JobPlan plan(seed + static_cast<uint64_t>(jobs), most, starves);
    good = JobRun(plan, rows, json).run() && good;
  }
  std::printf("%ld jobs\n%-26s %8s %10s %12s %15s %8s %8s\n", jobs, "fault", "trials", "survivors", "latest error",
              "longest shrink", "wrong", "failed");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::printf("%-26s %8ld %10ld %9.1f ms %12.1f ms %8ld %8ld\n", kFaultNames[i], row.trials, row.survivors,
                1e3 * row.latest, 1e3 * row.shrink, row.wrong, row.failed);
  }
  return good ? 0 : 1;
}
