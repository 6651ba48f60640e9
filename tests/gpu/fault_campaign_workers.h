// The processes of gpu_fault_campaign. Each waits for jobs, so that a trial does not pay for its start.
#pragma once

#include <sys/types.h>

#include <array>
#include <csignal>

#include "gpu/fault_campaign_rank.h"

namespace seqpar::test {

/// The parent's view. It never uses CUDA nor the library, so that it can fork at any time.
class Workers {
 public:
  Workers(const Options& options, Shared& shared);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers();

  /// Sets an idle process of `rank` to work. Returns its place, or -1 if none is ready in time.
  int start(int rank, uint64_t seed);
  /// Until no process starts. False if one does not come in time.
  bool awaitIdle();
  void signal(int place, int number) const { kill(processes_[static_cast<size_t>(place)].process, number); }
  bool isIdle(int place) const { return shared_.workers[static_cast<size_t>(place)].state == Worker::Idle; }
  /// The status of a process that has ended; -1: it has not.
  int status(int place);
  /// Ends a process, if it has not ended, and starts another one in its place.
  void replace(int place);

 private:
  struct Entry {
    pid_t process = -1;
    int rank = -1;
    int status = -1;
  };
  void launch(int place, int rank);
  [[noreturn]] void work(int place, int rank);

  const Options& options_;
  Shared& shared_;
  std::array<Entry, kMostWorkers> processes_{};
  int count_ = 0;
};

}  // namespace seqpar::test
