// A job of gpu_fault_campaign: its faults, what all processes share, and the part of one rank.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "seqpar/seqpar.h"

namespace seqpar::test {

enum class Fault { Kill, Abort, Leave, Revoke, Memory, Stop, Hang };
inline constexpr std::array kFaultNames{
    "SIGKILL",          "abort()",          "seqparCommAbort",         "seqparCommRevoke",
    "no device memory", "SIGSTOP, SIGCONT", "kernel that does not end"};
constexpr int kMostRanks = 8;
constexpr int kMostSteps = 8;
constexpr int kMostWorkers = 64;

struct Options {
  double seconds = 30;
  uint64_t seed = 0;
  int ranks = 4;         ///< of a job, at most
  int gpus = 0;          ///< rank r uses GPU r % gpus
  int spares = 1;        ///< waiting processes of each rank, which replace killed ones
  int timeoutMs = 2000;  ///< of jobs with a rank that is only silent
  bool starves = false;  ///< a rank may run out of device memory
  bool nccl = false;     ///< every rank names another host: NCCL carries what ranks exchange

  bool shares() const { return ranks > gpus; }
};

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A rank's failure in one step.
struct Outcome {
  std::atomic<bool> failed{false}, shrunk{false};
  double failedAt = 0, shrinkSeconds = 0;
  int members = 0;
  char text[300] = {};
};

/// A process that waits for jobs. The parent sets it to work; it becomes idle again by itself.
struct Worker {
  enum State : int { Starting, Idle, Busy };
  std::atomic<int> state{Starting};
  uint64_t seed = 0;  ///< of its job
};

/// What the processes of the current job share.
struct JobState {
  std::array<std::atomic<int>, kMostSteps + 1> working{};  ///< ranks at work on the communicator of each step
  std::array<std::atomic<int>, kMostRanks> order{};        ///< a fault, plus 1, that a rank causes by itself
  std::atomic<bool> hasId{false}, finish{false};
  seqparUniqueId id{};
  std::array<std::array<Outcome, kMostRanks>, kMostSteps> outcomes{};
  struct Problem {
    char text[400];
  };
  std::array<Problem, kMostRanks> problems{};
  std::array<std::atomic<int>, kMostRanks> wrong{};
};

/// Memory that all processes share.
struct Shared {
  std::array<Worker, kMostWorkers> workers{};
  JobState job;  ///< created again for each job
};

struct Step {
  Fault fault = Fault::Kill;
  int victim = 0;  ///< by rank of the job
  int delayUs = 0;
};

struct JobPlan {
  JobPlan(uint64_t number, const Options& options) : seed(number) {
    std::mt19937_64 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % static_cast<uint64_t>(end)); };
    ranks = below(3) == 0 ? 2 + below(options.ranks - 1) : options.ranks;
    keeps = below(2) == 0;
    starves = options.starves && below(4) == 0;
    timed = !starves && ranks > 2 && below(5) == 0;
    std::vector<int> living(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) living[static_cast<size_t>(rank)] = rank;
    while (living.size() > 1 && steps.size() < kMostSteps) {
      Step step;
      const int drawn = below(10);
      step.fault = drawn < 4 ? Fault::Kill : drawn < 7 ? Fault::Abort : drawn < 9 ? Fault::Leave : Fault::Revoke;
      // A process that starts needs memory, so nothing is killed.
      if (starves) step.fault = drawn < 6 ? Fault::Memory : drawn < 8 ? Fault::Leave : Fault::Revoke;
      // A minority cannot exclude a rank that is only silent.
      if (timed && living.size() > 2) step.fault = below(2) == 0 ? Fault::Stop : Fault::Hang;
      step.victim = living[static_cast<size_t>(below(static_cast<int>(living.size())))];
      step.delayUs = below(30000);
      steps.push_back(step);
      if (excludes(step.fault)) living.erase(std::find(living.begin(), living.end(), step.victim));
    }
  }
  static bool excludes(Fault fault) { return fault != Fault::Revoke && fault != Fault::Memory; }

  uint64_t seed;
  int ranks = 2;
  bool keeps = false;  ///< lost communicators are destroyed at the end only
  bool starves = false, timed = false;
  std::vector<Step> steps;
};

/// Runs rank `rank` of a job until its end, on the current device; throws what goes wrong.
void runRank(const Options& options, const JobPlan& plan, JobState& shared, int rank);

}  // namespace seqpar::test
