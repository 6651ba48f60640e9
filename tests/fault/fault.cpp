// fault SCENARIO: a job of ranks with a fault. All survivors must return RemoteError with the expected reason, and no
// wrong result may be returned as success. Durations are printed but not checked: for faults that must be noticed at
// once, the timeout is longer than the test may last.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/timeouts.h"
#include "layers.h"
#include "limits.h"
#include "seqpar/attn.h"
#include "seqpar/attn_plan.h"
#include "seqpar/exchange.h"
#include "splits.h"
#include "survivors.h"

using namespace seqpar::test;

namespace {

constexpr int kRanks = 4;

using Causes = std::vector<std::string>;
const Causes kExited{"the process is gone", "lost its connection to rank", "No such process"};
const Causes kSilent{"has been silent for", " waited ",
                     "lost its connection to rank"};  // the last: depends on which rank gave up first

/// Reads the reports of `ranks` and prints them; true if all report a failure with one of the causes.
bool survived(Job& job, const std::vector<int>& ranks, const Causes& causes, double since) {
  const auto reports = job.reports(ranks);
  bool right = reports.size() == ranks.size();
  if (!right) std::printf("%zu of %zu survivors reported\n", reports.size(), ranks.size());
  for (const auto& report : reports) {
    const double took = report.failedAt - since;
    const bool fine = report.result == seqparRemoteError && report.wrong == 0 &&
                      std::any_of(causes.begin(), causes.end(), [&](const std::string& cause) {
                        return std::string(report.text).find(cause) != std::string::npos;
                      });
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

/// A timeout that must end a wait and that the start of a job does not reach: four times what one took just now, and at
/// least two seconds. 0 if none could be started.
int shortTimeout() {
  const double begin = now();
  Job job(kRanks, kNoTimeoutMs, [](seqparComm_t comm, Report&) { seqparCommDestroy(comm); });
  if (!job.running() || job.reports(others({})).size() != kRanks) return 0;
  const int timeoutMs = std::max(2000, static_cast<int>(4000 * (now() - begin)));
  std::printf("timeout %d ms\n", timeoutMs);
  return timeoutMs;
}

/// Calls attempt(timeout in ms) with short timeouts, which grow until it returns true: a busy machine may delay a rank
/// for longer than a short timeout, so that all ranks give up before the fault is injected.
bool withShortTimeouts(const std::function<bool(int timeoutMs)>& attempt) {
  const int first = shortTimeout();
  if (first == 0) return false;
  return withGrowingTimeout(first, [&](int timeoutMs) { return std::string(attempt(timeoutMs) ? "" : "?"); }).empty();
}

/// Waits to be killed.
void linger() {
  while (true) pause();
}

void scan(seqparComm_t comm, Report& report) {
  scanUntilFailure(comm, report);
  seqparCommDestroy(comm);  // must return: the report is written after it
}

/// Rank 3 sends to 2, which then sends to 1, which then sends to 0: a rank waits for a rank that waits for another.
void chain(seqparComm_t comm, Report& report) {
  static std::vector<char> data(size_t{1} << 20, 1);
  auto result = seqparSuccess;
  for (size_t round = 0; result == seqparSuccess; ++round) {
    const size_t bytes = round % 3 == 0 ? 100 : data.size();
    const bool receives = report.rank<kRanks - 1, sends = report.rank> 0;
    if (receives) {
      result = seqparSendRecv(nullptr, 0, SEQPAR_NO_PEER, data.data(), bytes, report.rank + 1, comm, nullptr);
    }
    if (sends && result == seqparSuccess) {
      result = seqparSendRecv(data.data(), bytes, report.rank - 1, nullptr, 0, SEQPAR_NO_PEER, comm, nullptr);
    }
    report.scans += 1;
  }
  note(report, result, comm);
}

/// Large buffers around a ring, which are read in place.
void exchange(seqparComm_t comm, Report& report) {
  std::vector<char> out(size_t{8} << 20, static_cast<char>(report.rank)), in(out.size());
  const int next = (report.rank + 1) % kRanks, previous = (report.rank + kRanks - 1) % kRanks;
  for (;; ++report.scans) {
    const auto result = seqparSendRecv(out.data(), out.size(), next, in.data(), in.size(), previous, comm, nullptr);
    if (result != seqparSuccess) {
      note(report, result, comm);
      break;
    }
    if (std::count(in.begin(), in.end(), static_cast<char>(previous)) != static_cast<long>(in.size())) ++report.wrong;
  }
  seqparCommDestroy(comm);
}

/// Attention in a ring, forward and backward, of equal scores.
void attend(seqparComm_t comm, Report& report) {
  constexpr int64_t kTokens = 4096, kHeads = 4, kDim = 64;
  constexpr size_t kNumbers = kTokens / kRanks * kHeads * kDim;
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.algorithm = seqparAttnRing;
  desc.tokens = kTokens;
  desc.heads = kHeads;
  desc.headDim = kDim;
  seqparAttnPlan_t plan = nullptr;
  auto result = seqparAttnPlanCreate(&plan, &desc, comm);
  if (result == seqparSuccess) result = seqparAttnPlanPrepare(plan, nullptr, 0);
  std::vector<float> q(kNumbers, 0.0f), v(kNumbers, 2.0f), out(kNumbers), dq(kNumbers), dk(kNumbers), dv(kNumbers);
  std::vector<float> lse(kTokens / kRanks * kHeads);
  while (result == seqparSuccess) {
    seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
    forward.q.data = forward.k.data = q.data();
    forward.v.data = v.data();
    forward.out.data = out.data();
    forward.lse = lse.data();
    result = seqparAttnForward(plan, &forward, nullptr);
    if (result != seqparSuccess) break;
    // All scores are equal: the mean of values of 2, with the rounding of a sum.
    if (std::any_of(out.begin(), out.end(), [](float x) { return std::abs(x - 2) > 1e-3f; })) ++report.wrong;
    seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    backward.q.data = backward.k.data = q.data();
    backward.v.data = backward.dOut.data = v.data();
    backward.out.data = out.data();
    backward.lse = lse.data();
    backward.dq.data = dq.data();
    backward.dk.data = dk.data();
    backward.dv.data = dv.data();
    result = seqparAttnBackward(plan, &backward, nullptr);
    if (result == seqparSuccess) ++report.scans;
  }
  report.result = result;
  report.failedAt = now();
  std::snprintf(report.text, sizeof(report.text), "%s", seqparAttnGetLastError());
  seqparAttnPlanDestroy(plan);
  seqparCommDestroy(comm);
}

/// Ranks get a signal in the middle of their work.
bool signalled(const std::vector<int>& ranks, int number, int timeoutMs, void (*work)(seqparComm_t, Report&) = scan) {
  Job job(kRanks, timeoutMs, work);
  if (!job.running()) return false;
  usleep(200000);
  const double since = now();
  for (const int rank : ranks) job.signal(rank, number);
  return survived(job, others(ranks), number == SIGKILL ? kExited : kSilent, since);
}

/// A rank dies in a split: before, while or after it joins the server of its group, at another member. It is stopped
/// first, so that the others have time to wait for it.
bool diesInSplit() {
  constexpr int kJobs = 6, kLast = kRanks - 1;
  bool right = true;
  for (int i = 0; i < kJobs && right; ++i) {
    Job job(kRanks, kNoTimeoutMs, splitUntilFailure);
    if (!job.running()) return false;
    usleep(20000 + static_cast<useconds_t>(1500 * i));
    job.signal(kLast, SIGSTOP);
    usleep(60000);
    const double since = now();
    job.signal(kLast, SIGKILL);
    right = survived(job, others({kLast}), kExited, since);
  }
  return right;
}

/// A rank without descriptors cannot join its group in a split, and the other member waits for it. `rank` 1 is the
/// first of its group, so it cannot listen; rank 3 cannot connect.
bool cannotSplit(int rank) {
  Job job(kRanks, kNoTimeoutMs, [&](seqparComm_t comm, Report& report) {
    seqparComm_t part = nullptr;
    {
      std::optional<ShortOf> limit;
      if (report.rank == rank) limit.emplace(ShortOf::What::Descriptors, 0);
      // Not the error of comm, which another rank may have revoked by now.
      const auto result = seqparCommSplit(comm, report.rank % 2, 0, &part, nullptr);
      note(report, result, seqparGetLastError(nullptr));
    }
    shrinkAndScan(comm, report);
  });
  if (!job.running()) return false;
  const std::string name = "rank " + std::to_string(rank);
  const auto reports = job.reports(others({}));
  bool right = reports.size() == kRanks;
  for (const auto& report : reports) {
    std::printf("rank %d: result %d, %d wrong: %s\n", report.rank, report.result, report.wrong, report.text);
    const std::string text(report.text);
    const bool named = text.starts_with("seqparCommSplit") && (report.rank == rank || text.find(name) != text.npos);
    right = right && report.result != seqparSuccess && report.wrong == 0 && named;
  }
  return right;
}

/// One rank stops calling while it lives on.
bool stuck(int timeoutMs) {
  Job job(kRanks, timeoutMs, [](seqparComm_t comm, Report& report) {
    if (report.rank == 1) linger();
    scan(comm, report);
  });
  return job.running() && survived(job, others({1}), kSilent, now());
}

/// One rank ends without taking leave.
bool exits() {
  // Not before all have started: what its first scan sent and is lost would be another rank's failure to start.
  Gate allStarted;
  Job job(kRanks, kNoTimeoutMs, [&](seqparComm_t comm, Report& report) {
    if (report.rank == 2) {
      allStarted.pass();
      _exit(0);
    }
    scan(comm, report);
  });
  if (!job.running()) return false;
  const double since = now();
  allStarted.open();
  return survived(job, others({2}), kExited, since);
}

/// A rank dies while the others wait on streams.
bool leavesStreams() {
  Job job(kRanks, kNoTimeoutMs, [](seqparComm_t comm, Report& report) {
    seqparStream_t stream = nullptr;
    seqparStreamCreate(&stream);
    static float state = 1, prefix = -1;
    seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    params.op = seqparScanSum;
    params.heads = params.dk = params.dv = 1;
    params.direction = seqparReverse;  // all other ranks wait for the last rank
    if (report.rank == kRanks - 1) linger();
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
  return survived(job, others({kRanks - 1}), kExited, since);
}

/// After a loss the survivors create a new communicator, and it works.
bool rebuilds() {
  int ids[2];
  if (pipe(ids) != 0) return false;
  Job job(kRanks, kNoTimeoutMs, [&](seqparComm_t comm, Report& report) {
    scanUntilFailure(comm, report);
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
  return survived(job, others({1}), kExited, since);
}

/// Reads lines of the ranks' stderr until each of `ranks` has written one with "rank R" and `text`.
bool awaitLines(std::FILE* lines, std::vector<int> ranks, const std::string& call, const std::string& text) {
  char* line = nullptr;
  size_t room = 0;
  while (!ranks.empty() && getline(&line, &room, lines) > 0) {
    std::printf("%s", line);
    const std::string said = line;
    std::erase_if(ranks, [&](int rank) {
      return said.find(call) != std::string::npos && said.find(text) != std::string::npos &&
             said.find(": rank " + std::to_string(rank) + " ") != std::string::npos;
    });
  }
  std::free(line);
  return ranks.empty();
}

/// Rank 1 is late for two collectives, one on data and one on the control plane, until all other ranks have logged the
/// rank that they wait for. Nothing fails.
bool late() {
  setenv("SEQPAR_DEBUG", "WARN", 1);
  int said[2];
  if (pipe(said) != 0) return false;
  Gate gate;
  Job job(kRanks, kNoTimeoutMs, [&](seqparComm_t comm, Report& report) {
    dup2(said[1], STDERR_FILENO);
    if (report.rank == 1) gate.pass();
    const float mine = 1;
    float all[kRanks];
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.outer = shards.tokens = shards.inner = 1;
    auto result = seqparAllGather(&mine, all, &shards, comm, nullptr);
    if (report.rank == 1) gate.pass();
    if (result == seqparSuccess) result = seqparCommFinalize(comm);
    note(report, result, comm);
    seqparCommDestroy(comm);
  });
  close(said[1]);
  std::FILE* lines = fdopen(said[0], "r");
  if (!job.running()) return false;
  bool right = awaitLines(lines, others({1}), "seqparAllGather #", "for a message from rank 1");
  gate.open();
  right = awaitLines(lines, others({1}), "seqparCommFinalize", "waits: rank 1 did not take part after") && right;
  gate.open();
  const auto reports = job.reports(others({}));
  std::fclose(lines);
  return right && reports.size() == kRanks && std::all_of(reports.begin(), reports.end(), [](const Report& report) {
           return report.result == seqparSuccess;
         });
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<bool()>> scenarios{
      {"kill-first", [] { return signalled({0}, SIGKILL, kNoTimeoutMs); }},
      {"kill-middle", [] { return signalled({1}, SIGKILL, kNoTimeoutMs); }},
      {"kill-last", [] { return signalled({kRanks - 1}, SIGKILL, kNoTimeoutMs); }},
      {"kill-two",
       [] {
         return signalled({0, 2}, SIGKILL, kNoTimeoutMs);
       }},
      {"stop", [] { return withShortTimeouts([](int timeoutMs) { return signalled({1}, SIGSTOP, timeoutMs); }); }},
      {"kill-exchange", [] { return signalled({1}, SIGKILL, kNoTimeoutMs, exchange); }},
      {"kill-attention", [] { return signalled({2}, SIGKILL, kNoTimeoutMs, attend); }},
      {"kill-layer", [] { return signalled({2}, SIGKILL, kNoTimeoutMs, layersUntilFailure); }},
      {"kill-split", diesInSplit},
      {"short-split", [] { return cannotSplit(1) && cannotSplit(kRanks - 1); }},
      {"stop-exchange",
       [] { return withShortTimeouts([](int timeoutMs) { return signalled({2}, SIGSTOP, timeoutMs, exchange); }); }},
      {"stop-chain",
       [] { return withShortTimeouts([](int timeoutMs) { return signalled({3}, SIGSTOP, timeoutMs, chain); }); }},
      {"stuck", [] { return withShortTimeouts(stuck); }},
      {"late", late},
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
