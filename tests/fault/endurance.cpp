// endurance [--calls N] [--shrinks N] [--ranks P] [--seed S]: a job that runs for long without a fault: random calls,
// each with its own plans, rings and meshes, with a shrink after every N / shrinks calls. Memory, descriptors and
// threads of each process must not grow after the first tenth.
#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "common/draw_seed.h"
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
  long calls = 2000, shrinks = 10;
  int ranks = 3;
  uint64_t seed = drawSeed();
};

struct Usage {
  long residentKib = 0, descriptors = 0, threads = 0;
};

long entries(const char* folder) {
  long count = -2;  // "." and ".."
  DIR* const open = opendir(folder);
  if (open == nullptr) return 0;
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}

Usage usage() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  long pages = 0, resident = 0;
  file >> pages >> resident;
  return {resident * (sysconf(_SC_PAGESIZE) / 1024), entries("/proc/self/fd"), entries("/proc/self/task")};
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

void work(const Options& options, seqparComm_t comm, Report& report) {
  std::vector<Usage> samples;
  const long every = std::max<long>(options.calls / kSamples, 1);
  const long life = options.shrinks == 0 ? options.calls + 1 : std::max<long>(options.calls / options.shrinks, 1);
  RandomCalls calls(comm, options.seed);
  auto result = seqparCommBarrier(comm);
  for (long i = 1; i <= options.calls && result == seqparSuccess; ++i) {
    result = calls.next();
    if (result == seqparSuccess && i % life == 0) {
      // All ranks have finished the call; the barrier itself fails on a rank that is slower than another's revoke.
      seqparCommBarrier(comm);
      result = replace(comm);
      calls.use(comm);
    }
    if (i % every == 0 && result == seqparSuccess) {
      result = seqparCommBarrier(comm);
      samples.push_back(usage());
    }
  }
  report.scans = calls.succeeded();
  report.wrong = calls.wrong();
  note(report, result, comm);
  if (result == seqparSuccess) result = seqparCommDestroy(comm);
  if (result != seqparSuccess || samples.size() < 4) return;
  const Usage& first = samples[samples.size() / 10 + 1];
  const Usage& last = samples.back();
  std::snprintf(report.text, sizeof(report.text), "%ld -> %ld KiB, %ld -> %ld descriptors, %ld -> %ld threads",
                first.residentKib, last.residentKib, first.descriptors, last.descriptors, first.threads, last.threads);
  const bool grows = last.residentKib > first.residentKib + kMostGrowthKib || last.descriptors > first.descriptors ||
                     last.threads > first.threads;
  if (grows) report.result = seqparInternalError;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    const long value = std::atol(argv[i + 1]);
    if (option == "--calls") options.calls = value;
    if (option == "--shrinks") options.shrinks = value;
    if (option == "--ranks") options.ranks = static_cast<int>(value);
    if (option == "--seed") options.seed = static_cast<uint64_t>(value);
  }
  std::printf("endurance --calls %ld --shrinks %ld --ranks %d --seed %llu\n", options.calls, options.shrinks,
              options.ranks, static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  const double begin = now();
  Job job(options.ranks, kNoTimeoutMs, [&](seqparComm_t comm, Report& report) { work(options, comm, report); });
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
