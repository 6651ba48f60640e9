#include "gpu/fault_campaign_workers.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "gpu/support/device_backend.h"

namespace seqpar::test {
namespace {

constexpr double kStartSeconds = 60;  ///< A process that is not ready after so long does not come.

void rest() {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

Workers::Workers(const Options& options, Shared& shared) : options_(options), shared_(shared) {
  count_ = std::min(options.ranks * (1 + options.spares), kMostWorkers);
  for (int place = 0; place < count_; ++place) launch(place, place % options.ranks);
}

Workers::~Workers() {
  for (int place = 0; place < count_; ++place) {
    if (status(place) >= 0) continue;
    signal(place, SIGKILL);
    waitpid(processes_[static_cast<size_t>(place)].process, nullptr, 0);
  }
}

int Workers::start(int rank, uint64_t seed) {
  for (const double until = now() + kStartSeconds; now() < until; rest()) {
    for (int place = 0; place < count_; ++place) {
      if (processes_[static_cast<size_t>(place)].rank != rank || !isIdle(place)) continue;
      if (status(place) >= 0) {
        replace(place);
        continue;
      }
      Worker& worker = shared_.workers[static_cast<size_t>(place)];
      worker.seed = seed;
      worker.state = Worker::Busy;
      return place;
    }
  }
  return -1;
}

bool Workers::awaitIdle() {
  for (const double until = now() + kStartSeconds; now() < until; rest()) {
    const auto end = shared_.workers.begin() + count_;
    if (std::all_of(shared_.workers.begin(), end, [](const Worker& one) { return one.state == Worker::Idle; })) {
      return true;
    }
  }
  return false;
}

int Workers::status(int place) {
  Entry& entry = processes_[static_cast<size_t>(place)];
  if (entry.status < 0 && waitpid(entry.process, &entry.status, WNOHANG) == 0) entry.status = -1;
  return entry.status;
}

void Workers::replace(int place) {
  Entry& entry = processes_[static_cast<size_t>(place)];
  if (status(place) < 0) {
    signal(place, SIGKILL);
    waitpid(entry.process, nullptr, 0);
  }
  launch(place, entry.rank);
}

void Workers::launch(int place, int rank) {
  shared_.workers[static_cast<size_t>(place)].state = Worker::Starting;
  std::fflush(stdout);
  const pid_t process = fork();
  expect(process >= 0, "fork failed");
  if (process == 0) work(place, rank);
  processes_[static_cast<size_t>(place)] = {process, rank, -1};
}

void Workers::work(int place, int rank) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  const std::string host = "host" + std::to_string(rank);
  if (options_.nccl) setenv("NCCL_HOSTID", host.c_str(), 1);
  auto* const text = shared_.job.problems[static_cast<size_t>(rank)].text;
  Worker& own = shared_.workers[static_cast<size_t>(place)];
  int status = 0;
  try {
    expectCuda(cudaSetDevice(rank % options_.gpus), "cudaSetDevice");
    DeviceBackend device(1, false, size_t{1} << 20);
    backend() = &device;
    for (own.state = Worker::Idle;; own.state = Worker::Idle) {
      while (own.state != Worker::Busy) rest();
      runRank(options_, JobPlan(own.seed, options_), shared_.job, rank);
    }
  } catch (const std::exception& error) {
    std::snprintf(text, sizeof(JobState::Problem), "%.390s", error.what());
    status = 1;
  }
  _exit(status);
}

}  // namespace seqpar::test
