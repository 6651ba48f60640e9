// A job of gpu_fault_campaign: its faults, what its processes share, and the part of one rank.
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

enum class Fault { Kill, Leave, Revoke, Memory, Stop, Hang };
inline constexpr std::array kFaultNames{"SIGKILL",          "seqparCommAbort",  "seqparCommRevoke",
                                        "no device memory", "SIGSTOP, SIGCONT", "kernel that does not end"};
constexpr int kMostRanks = 8;
constexpr int kMostSteps = 8;

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

/// Memory that all processes of a job share.
struct Shared {
  std::array<std::atomic<int>, kMostSteps + 1> working{};  ///< ranks at work on the communicator of each step
  std::array<std::atomic<int>, kMostRanks> order{};        ///< a fault, plus 1, that a rank causes by itself
  std::atomic<bool> finish{false};
  std::array<std::array<Outcome, kMostRanks>, kMostSteps> outcomes{};
  struct Problem {
    char text[400];
  };
  std::array<Problem, kMostRanks> problems{};
  std::array<std::atomic<int>, kMostRanks> wrong{};
};

struct Step {
  Fault fault = Fault::Kill;
  int victim = 0;  ///< by rank of the job
  int delayUs = 0;
};

struct JobPlan {
  /// `starves`: a rank may run out of device memory.
  JobPlan(uint64_t number, int most, bool starves) : seed(number) {
    std::mt19937_64 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % static_cast<uint64_t>(end)); };
    ranks = below(3) == 0 ? 2 + below(most - 1) : most;
    keeps = below(2) == 0;
    timed = ranks > 2 && below(3) == 0;
    std::vector<int> living(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) living[static_cast<size_t>(rank)] = rank;
    while (living.size() > 1 && steps.size() < kMostSteps) {
      Step step;
      const int drawn = below(10);
      step.fault = drawn < 5               ? Fault::Kill
                   : drawn < 7             ? Fault::Leave
                   : drawn < 8 || !starves ? Fault::Revoke
                                           : Fault::Memory;
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
  bool timed = false;
  std::vector<Step> steps;
};

/// Runs rank `rank` of a job until its end; throws what goes wrong.
void runRank(const JobPlan& plan, Shared& shared, int rank, const seqparUniqueId& id);

}  // namespace seqpar::test
