#include "survivors.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace seqpar::test {
namespace {

/// Reads `bytes` bytes; false if the pipe ends before.
bool readAll(int file, void* into, size_t bytes) {
  size_t got = 0;
  while (got < bytes) {
    const auto count = read(file, static_cast<char*>(into) + got, bytes - got);
    if (count <= 0) return false;
    got += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

Gate::Gate() {
  if (pipe2(ends_, O_CLOEXEC) != 0) std::abort();
}

Gate::~Gate() {
  close(ends_[0]);
  close(ends_[1]);
}

void Gate::open() const {
  if (write(ends_[1], "", 1) != 1) std::abort();
}

void Gate::pass() const {
  char byte = 0;
  readAll(ends_[0], &byte, 1);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void note(Report& report, seqparResult_t result, seqparComm_t comm) {
  note(report, result, seqparGetLastError(comm));
}

void note(Report& report, seqparResult_t result, const char* text) {
  report.result = result;
  report.failedAt = now();
  std::snprintf(report.text, sizeof(report.text), "%s", text);
}

bool scanOnce(seqparComm_t comm, int algorithm, size_t elements, Report& report) {
  int ranks = 0;
  seqparCommCount(comm, &ranks);
  static std::vector<float> state, prefix, total;
  state.assign(elements, 1.f);
  prefix.assign(elements, -1.f);
  total.assign(elements, -1.f);
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = seqparScanSum;
  params.heads = 1;
  params.dk = 1;
  params.dv = static_cast<int64_t>(elements);
  params.algorithm = algorithm;
  const auto result =
      seqparAllScan(state.data(), nullptr, nullptr, prefix.data(), total.data(), &params, comm, nullptr);
  if (result != seqparSuccess) {
    note(report, result, comm);
    return false;
  }
  ++report.scans;
  for (size_t i = 0; i < elements; ++i) {
    if (prefix[i] != static_cast<float>(report.rank) || total[i] != static_cast<float>(report.rank + 1)) {
      ++report.wrong;
      break;
    }
  }
  return true;
}

void scanUntilFailure(seqparComm_t comm, Report& report) {
  const size_t lengths[] = {1, 1000, 100000, 700000};
  for (size_t round = 0;; ++round) {
    const int algorithm = static_cast<int>(round % (SEQPAR_SCAN_ALGORITHMS + 1));
    if (!scanOnce(comm, algorithm, lengths[round % 4], report)) return;
  }
}

Job::Job(int ranks, int timeoutMs, const std::function<void(seqparComm_t, Report&)>& body,
         const std::function<pid_t(int)>& start) {
  // Handed from rank 0 to the others: the parent must stay free of the library's threads, which would not survive the
  // forks.
  int ids[2];
  if (pipe2(ids, O_CLOEXEC) != 0) std::abort();
  for (int rank = 0; rank < ranks; ++rank) {
    int started[2], report[2];
    if (pipe2(started, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0) std::abort();
    const pid_t pid = start(rank);
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      seqparUniqueId id;
      Report mine;
      mine.rank = rank;
      mine.result = seqparSuccess;
      seqparComm_t comm = nullptr;
      bool made = true;
      if (rank == 0) {
        made = seqparGetUniqueId(&id) == seqparSuccess;
        for (int other = 1; other < ranks; ++other) made = made && write(ids[1], &id, sizeof(id)) == sizeof(id);
      } else {
        close(ids[1]);  // so that rank 0's end ends the wait
        made = readAll(ids[0], &id, sizeof(id));
      }
      seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
      config.timeoutMs = timeoutMs;
      const auto result = made ? seqparCommInitRankConfig(&comm, ranks, id, rank, &config) : seqparSystemError;
      if (result != seqparSuccess) {
        note(mine, result, seqparGetLastError(nullptr));
      } else if (scanOnce(comm, seqparScanAuto, 1000, mine)) {
        if (write(started[1], "", 1) == 1) body(comm, mine);
      }
      [[maybe_unused]] const auto sent = write(report[1], &mine, sizeof(mine));
      _exit(0);
    }
    close(started[1]);
    close(report[1]);
    processes_.push_back({pid, started[0], report[0]});
  }
  close(ids[0]);
  close(ids[1]);
}

Job::~Job() {
  for (const auto& process : processes_) {
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
    close(process.started);
    close(process.report);
  }
}

bool Job::running() {
  for (const auto& process : processes_) {
    char byte = 0;
    if (!readAll(process.started, &byte, 1)) return false;
  }
  return true;
}

void Job::signal(int rank, int number) const {
  kill(processes_[static_cast<size_t>(rank)].pid, number);
}

std::optional<Job::Ending> Job::ending(int rank) const {
  siginfo_t info{};
  const auto pid = static_cast<id_t>(processes_[static_cast<size_t>(rank)].pid);
  if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return std::nullopt;
  return Ending{info.si_code, info.si_status};
}

std::vector<Report> Job::reports(const std::vector<int>& ranks, double seconds) {
  std::vector<Report> out;
  const double end = now() + seconds;
  for (const int rank : ranks) {
    Report report;
    pollfd file{processes_[static_cast<size_t>(rank)].report, POLLIN, 0};
    if (poll(&file, 1, static_cast<int>(1e3 * std::max(end - now(), 0.0))) < 1) continue;
    if (readAll(file.fd, &report, sizeof(report))) out.push_back(report);
  }
  return out;
}

}  // namespace seqpar::test
