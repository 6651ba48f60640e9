// fault SCENARIO: a job of ranks in which something goes wrong. All survivors must return RemoteError in time, and
// nothing wrong may have come as success.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "survivors.h"

using namespace seqpar::test;

namespace {

constexpr int kRanks = 4;
constexpr int kLongMs = 60000;  // a timeout that must play no part
constexpr int kShortMs = 2000;  // one that must end the wait
constexpr double kWork = 30;    // seconds of scanning at the most

/// Prints what is wrong with the survivors' reports; true if nothing is.
bool survived(const std::vector<Report>& reports, size_t expected, double since, double within) {
  bool right = reports.size() == expected;
  if (!right) std::printf("%zu of %zu survivors reported\n", reports.size(), expected);
  for (const auto& report : reports) {
    const double took = report.failedAt - since;
    const bool fine =
        report.result == seqparRemoteError && report.wrong == 0 && took <= within && report.text[0] != '\0';
    std::printf("rank %d: %s after %.3f s, %ld scans, %d wrong: %s\n", report.rank,
                seqparGetErrorString(static_cast<seqparResult_t>(report.result)), took, report.scans, report.wrong,
                report.text);
    right = right && fine;
  }
  return right;
}

std::vector<int> others(const std::vector<int>& lost) {
  std::vector<int> out;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (std::find(lost.begin(), lost.end(), rank) == lost.end()) out.push_back(rank);
  }
  return out;
}

void scan(seqparComm_t comm, Report& report) {
  scanUntilFailure(comm, kWork, report);
  seqparCommDestroy(comm);  // must come back, too: the report is written after it
}

/// Large buffers round a ring, which are read where they lie.
void exchange(seqparComm_t comm, Report& report) {
  std::vector<char> out(size_t{8} << 20, static_cast<char>(report.rank)), in(out.size());
  const int next = (report.rank + 1) % kRanks, previous = (report.rank + kRanks - 1) % kRanks;
  for (const double end = now() + kWork; now() < end; ++report.scans) {
    const auto result = seqparSendRecv(out.data(), out.size(), next, in.data(), in.size(), previous, comm, nullptr);
    if (result != seqparSuccess) {
      note(report, result, comm);
      break;
    }
    if (std::count(in.begin(), in.end(), static_cast<char>(previous)) != static_cast<long>(in.size())) ++report.wrong;
  }
  seqparCommDestroy(comm);
}

/// Ranks get a signal in the middle of their work.
bool signalled(const std::vector<int>& ranks, int number, int timeoutMs, double within,
               void (*work)(seqparComm_t, Report&) = scan) {
  Job job(kRanks, timeoutMs, work);
  if (!job.running()) return false;
  usleep(200000);
  const double since = now();
  for (const int rank : ranks) job.signal(rank, number);
  const auto left = others(ranks);
  return survived(job.reports(left, within + 10), left.size(), since, within);
}

/// One rank stops calling while it lives on.
bool stuck() {
  Job job(kRanks, kShortMs, [](seqparComm_t comm, Report& report) {
    if (report.rank == 1) sleep(kWork);
    scan(comm, report);
  });
  const bool started = job.running();
  const double since = now();
  const auto left = others({1});
  return started && survived(job.reports(left, 15), left.size(), since, kShortMs / 1000. + 2);
}

/// One rank ends without taking leave.
bool exits() {
  Job job(kRanks, kLongMs, [](seqparComm_t comm, Report& report) {
    if (report.rank == 2) {
      usleep(300000);  // what the first scan sent is on its way: its loss would be another rank's failure to start
      _exit(0);
    }
    scan(comm, report);
  });
  const bool started = job.running();
  const double since = now();
  const auto left = others({2});
  return started && survived(job.reports(left, 15), left.size(), since, 2);
}

/// A rank dies while the others wait on streams.
bool leavesStreams() {
  Job job(kRanks, kLongMs, [](seqparComm_t comm, Report& report) {
    seqparStream_t stream = nullptr;
    seqparStreamCreate(&stream);
    static float state = 1, prefix = -1;
    seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    params.op = seqparScanSum;
    params.heads = params.dk = params.dv = 1;
    params.direction = seqparReverse;  // everybody waits for the last rank
    if (report.rank == kRanks - 1) sleep(kWork);
    seqparAllScan(&state, nullptr, nullptr, &prefix, nullptr, &params, comm, stream);
    report.result = seqparStreamSynchronize(stream);
    report.failedAt = now();
    std::snprintf(report.text, sizeof(report.text), "%s", seqparGetLastError(comm));
    seqparStreamDestroy(stream);
    seqparCommAbort(comm);
  });
  if (!job.running()) return false;
  usleep(200000);
  const double since = now();
  job.signal(kRanks - 1, SIGKILL);
  const auto left = others({kRanks - 1});
  return survived(job.reports(left, 15), left.size(), since, 2);
}

/// After a loss the survivors make a new communicator, and it works.
bool rebuilds() {
  int ids[2];
  if (pipe(ids) != 0) return false;
  Job job(kRanks, kLongMs, [&](seqparComm_t comm, Report& report) {
    scanUntilFailure(comm, kWork, report);
    seqparCommAbort(comm);
    if (report.result != seqparRemoteError) return;
    const int rank = report.rank < 1 ? report.rank : report.rank - 1;  // rank 1 is gone
    seqparUniqueId id;
    seqparComm_t fresh = nullptr;
    if (rank == 0) {
      seqparGetUniqueId(&id);
      for (int other = 1; other < kRanks - 1; ++other)
        [[maybe_unused]] const auto sent = write(ids[1], &id, sizeof(id));
    } else {
      [[maybe_unused]] const auto got = read(ids[0], &id, sizeof(id));
    }
    Report again;
    again.rank = rank;
    const auto made = seqparCommInitRank(&fresh, kRanks - 1, id, rank);
    const bool works = made == seqparSuccess && scanOnce(fresh, seqparScanAuto, 5000, again) && again.wrong == 0;
    if (!works || seqparCommDestroy(fresh) != seqparSuccess) {
      report.wrong = 1;
      std::snprintf(report.text, sizeof(report.text), "the new communicator: %s", seqparGetLastError(nullptr));
    }
  });
  if (!job.running()) return false;
  const double since = now();
  job.signal(1, SIGKILL);
  const auto left = others({1});
  return survived(job.reports(left, 30), left.size(), since, 2);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<bool()>> scenarios{
      {"kill-first", [] { return signalled({0}, SIGKILL, kLongMs, 2); }},
      {"kill-middle", [] { return signalled({1}, SIGKILL, kLongMs, 2); }},
      {"kill-last", [] { return signalled({kRanks - 1}, SIGKILL, kLongMs, 2); }},
      {"kill-two",
       [] {
         return signalled({0, 2}, SIGKILL, kLongMs, 2);
       }},
      {"stop", [] { return signalled({1}, SIGSTOP, kShortMs, kShortMs / 1000. + 2); }},
      {"kill-exchange", [] { return signalled({1}, SIGKILL, kLongMs, 2, exchange); }},
      {"stop-exchange", [] { return signalled({2}, SIGSTOP, kShortMs, kShortMs / 1000. + 2, exchange); }},
      {"stuck", stuck},
      {"exit", exits},
      {"leave-stream", leavesStreams},
      {"rebuild", rebuilds}};
  const auto scenario = argc == 2 ? scenarios.find(argv[1]) : scenarios.end();
  if (scenario == scenarios.end()) {
    std::fprintf(stderr, "usage: fault SCENARIO, one of:");
    for (const auto& [name, run] : scenarios) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  return scenario->second() ? 0 : 1;
}
