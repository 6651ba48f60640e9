// endurance [--calls N] [--small N] [--plans N] [--shrinks N] [--pauses N] [--seconds S] [--ranks P] [--seed S] [--log
// FILE]: a job that runs for long without a fault: N calls of any kind, each with its own plans, rings and meshes,
// among them N small collectives, N plans that run once, N shrinks, and N pauses of a random rank of up to 2 s. Memory,
// descriptors and threads of each process must not grow after the first tenth. --log: a line of JSON for each sample.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "common/draw_seed.h"
#include "common/process_usage.h"
#include "common/timeouts.h"
#include "random_calls.h"
#include "seqpar/shrink.h"
#include "survivors.h"

using namespace seqpar::test;

namespace {

constexpr int kSamples = 20;
/// Arenas of threads and the allocator's rounding: a leak of 100 bytes a call exceeds it within a million calls.
constexpr long kMostGrowthKib = 24 << 10;

struct Options {
  long calls = 2000, small = 0, plans = 0, shrinks = 10, pauses = 0;
  int ranks = 3;
  double seconds = 1e9;
  const char* log = nullptr;
  uint64_t seed = drawSeed();
};

/// Whether all of the last quarter are above all of the first: UCX opens some descriptors for a moment.
bool increases(const std::vector<ProcessUsage>& samples, long ProcessUsage::*what) {
  const auto quarter = static_cast<std::ptrdiff_t>(samples.size() / 4);
  const auto less = [what](const ProcessUsage& a, const ProcessUsage& b) { return a.*what < b.*what; };
  const ProcessUsage& most = *std::max_element(samples.begin(), samples.begin() + quarter, less);
  const ProcessUsage& least = *std::min_element(samples.end() - quarter, samples.end(), less);
  return least.*what > most.*what;
}

/// Revokes `comm` and replaces it.
seqparResult_t replace(seqparComm_t& comm) {
  seqparComm_t next = nullptr;
  seqparCommRevoke(comm);
  const auto result = seqparCommShrink(comm, nullptr, &next);
  if (result != seqparSuccess) return result;
  seqparCommDestroy(comm);
  comm = next;
  return result;
}

/// The calls of a run, evenly mixed.
class Schedule {
 public:
  explicit Schedule(const Options& options)
      : total_(options.calls + options.small + options.plans), options_(options), pauses_(options.seed) {}

  long total() const { return total_; }
  bool shrinksAfter(long call) const { return isOneOf(options_.shrinks, call); }
  RandomCalls::Kind kindOf(long call) const {
    if (isOneOf(options_.plans, call)) return RandomCalls::Kind::Plan;
    // Of the other calls.
    const long others = total_ - options_.plans, number = call - call * options_.plans / total_;
    const bool any = number * options_.calls / others != (number - 1) * options_.calls / others;
    return any ? RandomCalls::Kind::Any : RandomCalls::Kind::Small;
  }
  /// Sleeps if `rank` pauses before this call. Equal draws on all ranks.
  void pause(long call, int rank) {
    if (!isOneOf(options_.pauses, call)) return;
    const auto chosen = static_cast<int>(pauses_() % static_cast<uint64_t>(options_.ranks));
    const auto us = static_cast<useconds_t>(pauses_() % 2000000);
    if (chosen == rank) usleep(us);
  }

 private:
  /// Whether call 1, 2, ... is one of `count` that are spread over all.
  bool isOneOf(long count, long call) const { return call * count / total_ != (call - 1) * count / total_; }

  long total_;
  const Options& options_;
  std::mt19937_64 pauses_;
};

void log(const Options& options, int rank, long calls, double seconds, const ProcessUsage& now) {
  if (options.log == nullptr) return;
  std::ostringstream line;  // written at once: all ranks have one file
  line << R"({"rank": )" << rank << R"(, "calls": )" << calls << R"(, "seconds": )" << seconds << R"(, "kib": )"
       << now.residentKib << R"(, "descriptors": )" << now.descriptors << R"(, "threads": )" << now.threads << "}\n";
  std::ofstream(options.log, std::ios::app) << line.str();
}

void work(const Options& options, std::atomic<bool>& isOver, seqparComm_t comm, Report& report) {
  std::vector<ProcessUsage> samples;
  Schedule schedule(options);
  const long every = std::max<long>(schedule.total() / kSamples, 1);
  RandomCalls calls(comm, options.seed);
  const double begin = now();
  auto result = seqparCommBarrier(comm);
  bool ends = false;
  for (long i = 1; i <= schedule.total() && result == seqparSuccess && !ends; ++i) {
    schedule.pause(i, report.rank);
    result = calls.next(schedule.kindOf(i));
    if (result == seqparSuccess && schedule.shrinksAfter(i)) {
      // All ranks have finished the call; the barrier itself fails on a rank that is slower than another's revoke.
      seqparCommBarrier(comm);
      result = replace(comm);
      calls.use(comm);
    }
    if (i % every == 0 && result == seqparSuccess) {
      if (report.rank == 0 && now() - begin > options.seconds) isOver = true;
      result = seqparCommBarrier(comm);
      ends = isOver;
      samples.push_back(processUsage());
      log(options, report.rank, i, now() - begin, samples.back());
    }
  }
  report.scans = calls.succeeded();
  report.wrong = calls.wrong();
  note(report, result, comm);
  if (result == seqparSuccess) result = seqparCommDestroy(comm);
  if (result != seqparSuccess || samples.size() < 4) return;
  const ProcessUsage& first = samples[samples.size() / 10 + 1];
  const ProcessUsage& last = samples.back();
  std::snprintf(report.text, sizeof(report.text), "%ld -> %ld KiB, %ld -> %ld descriptors, %ld -> %ld threads",
                first.residentKib, last.residentKib, first.descriptors, last.descriptors, first.threads, last.threads);
  const bool grows = last.residentKib > first.residentKib + kMostGrowthKib ||
                     increases(samples, &ProcessUsage::descriptors) || increases(samples, &ProcessUsage::threads);
  if (grows) report.result = seqparInternalError;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    const long value = std::atol(argv[i + 1]);
    if (option == "--calls") options.calls = value;
    if (option == "--small") options.small = value;
    if (option == "--plans") options.plans = value;
    if (option == "--shrinks") options.shrinks = value;
    if (option == "--pauses") options.pauses = value;
    if (option == "--seconds") options.seconds = static_cast<double>(value);
    if (option == "--log") options.log = argv[i + 1];
    if (option == "--ranks") options.ranks = static_cast<int>(value);
    if (option == "--seed") options.seed = static_cast<uint64_t>(value);
  }
  std::printf("endurance --calls %ld --small %ld --plans %ld --shrinks %ld --pauses %ld --ranks %d --seed %llu\n",
              options.calls, options.small, options.plans, options.shrinks, options.pauses, options.ranks,
              static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  const double begin = now();
  void* const memory =
      mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  auto& isOver = *new (memory) std::atomic<bool>(false);
  Job job(options.ranks, kNoTimeoutMs, [&](seqparComm_t comm, Report& report) { work(options, isOver, comm, report); });
  std::vector<int> ranks(static_cast<size_t>(options.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto reports = job.reports(ranks);
  bool good = reports.size() == ranks.size();
  for (const auto& report : reports) {
    good = good && report.result == seqparSuccess && report.wrong == 0;
    std::printf("rank %d: %ld calls, %d wrong, %s%s\n", report.rank, report.scans, report.wrong, report.text,
                report.result == seqparSuccess ? "" : ": failed");
  }
  std::printf("%.1f s\n", now() - begin);
  return good ? 0 : 1;
}
