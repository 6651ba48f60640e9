// The settings that all perf binaries share: nccl-tests' options with their meanings there, and more under long names.
#pragma once

#include <string>
#include <vector>

#include "options.h"

namespace seqpar::perf {

/// How the times of the ranks become one time.
enum class Average { Rank0 = 0, Mean = 1, Least = 2, Most = 3 };

/// When the host waits within a loop (-z).
enum class Blocking {
  None = 0,           ///< at its end
  EachBarrier = 1,    ///< after each operation, and then for the other ranks
  Each = 2,           ///< after each operation
  IterationApart = 3  ///< after each iteration, and then for the other ranks, which is not part of the time
};

struct Settings {
  size_t minBytes = 0, maxBytes = 0;  ///< set by finish() where they were not given
  bool minGiven = false, maxGiven = false;
  size_t stepBytes = 1 << 20;
  size_t factor = 1;  ///< 1: stepBytes is added; else sizes are multiplied by it
  int iterations = 20;
  int aggregate = 1;  ///< operations an iteration
  int warmup = 5;
  int cycles = 1;  ///< how often all sizes are run; 0: for ever
  int repeats = 5;
  double loopSeconds = 1;  ///< loops that would take longer are shortened; 0: never
  int check = 1;           ///< iterations that are checked
  Blocking blocking = Blocking::None;
  bool barrier = false;
  bool perIteration = false;
  int perIterationSkip = 0;
  bool cpuTime = false;
  bool timestamps = false;
  bool memory = false;
  size_t unalign = 0;  ///< elements of 4 bytes by which buffers are misaligned
  bool peers = false;
  Average average = Average::Most;
  int threads = 0;  ///< of a process; 0: not given
  int devices = 0;  ///< ranks of a thread; 0: not given
  bool gpu = false;
  int gpus = 0;       ///< how many GPUs of a host to use; 0: all
  int firstGpu = -1;  ///< of the first process of a host; -1: not given
  bool deviceGiven = false;
  int graphLaunches = 0;  ///< 0: loops are no CUDA graphs
  int ctas = 0;           ///< 0: the library's default
  std::string jsonPath;
  int timeoutMs = 0;               ///< 0: the library's default
  double minBandwidth = -1;        ///< GB/s that the average bus bandwidth is to reach; -1: any will do
  std::string split;               ///< which processes form a group of their own, as NCCL_TESTS_SPLIT says; "": all do
  std::vector<std::string> notes;  ///< what has no effect here, and why

  /// Adds the options that set these fields.
  void addTo(OptionParser& parser, size_t defaultBytes);
  /// Adds those of nccl-tests' options that the binary has not taken and that mean nothing to it.
  void addIgnoredTo(OptionParser& parser);
  /// nccl-tests' environment variables, defaults that depend on others, and contradictions, which are UsageErrors. Call
  /// after parsing. `defaultBytes` is the size where none is given.
  void finish(size_t defaultBytes);
  /// The sizes that -b, -e, -i and -f stand for.
  std::vector<size_t> sizes() const;

  bool graph() const { return graphLaunches > 0; }
  /// Whether operations are given no stream, so that a call is complete when it returns. Never on GPUs.
  bool blockingCalls() const { return !gpu && (blocking == Blocking::Each || blocking == Blocking::EachBarrier); }
};

/// The color of process `rank` of NCCL_TESTS_SPLIT's expressions, such as "MOD 2", "DIV 8", "& 0x7", "|0b11".
int splitColor(const std::string& expression, int rank);

}  // namespace seqpar::perf
