// The common settings of all perf binaries: nccl-tests' options with nccl-tests' meanings, and more under long names.
#pragma once

#include <string>
#include <vector>

#include "options.h"

namespace seqpar::perf {

/// How the ranks' times are combined.
enum class Average { Rank0 = 0, Mean = 1, Least = 2, Most = 3 };

/// When the host waits within a loop (-z).
enum class Blocking {
  None = 0,           ///< at its end
  EachBarrier = 1,    ///< after each operation, and then a barrier
  Each = 2,           ///< after each operation
  IterationApart = 3  ///< after each iteration, and then a barrier outside of the time
};

struct Settings {
  size_t minBytes = 0, maxBytes = 0;  ///< set by finish() if they were not given
  bool minGiven = false, maxGiven = false;
  size_t stepBytes = 1 << 20;
  size_t factor = 1;  ///< 1: add stepBytes; else multiply sizes by it
  int iterations = 20;
  int aggregate = 1;  ///< operations an iteration
  int warmup = 5;
  int cycles = 1;  ///< rounds over all sizes; 0: endless
  int repeats = 5;
  double loopSeconds = 1;  ///< longer loops are shortened; 0: never
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
  int threads = 0;  ///< per process; 0: not given
  int devices = 0;  ///< ranks per thread; 0: not given
  bool gpu = false;
  int gpus = 0;       ///< number of GPUs of a host to use; 0: all
  int firstGpu = -1;  ///< of the first process of a host; -1: not given
  bool deviceGiven = false;
  int graphLaunches = 0;  ///< 0: no CUDA graphs
  int ctas = 0;           ///< 0: the library's default
  std::string jsonPath;
  int timeoutMs = 0;               ///< 0: the library's default
  double minBandwidth = -1;        ///< required average bus bandwidth in GB/s; -1: none
  std::string split;               ///< NCCL_TESTS_SPLIT: which processes form a group; "": all
  std::vector<std::string> notes;  ///< options without effect, with the reason

  /// Adds the options that set these fields.
  void addTo(OptionParser& parser, size_t defaultBytes);
  /// Adds nccl-tests' options that neither the binary nor addTo() has added; they have no effect.
  void addIgnoredTo(OptionParser& parser);
  /// Applies nccl-tests' environment variables and defaults that depend on other options; contradictions are
  /// UsageErrors. Call it after parsing. `defaultBytes` is the size if none is given.
  void finish(size_t defaultBytes);
  /// The sizes given by -b, -e, -i and -f.
  std::vector<size_t> sizes() const;

  bool graph() const { return graphLaunches > 0; }
  /// Whether operations get no stream, so that a call is complete on return. Never on GPUs.
  bool blockingCalls() const { return !gpu && (blocking == Blocking::Each || blocking == Blocking::EachBarrier); }
};

/// The color of process `rank` of NCCL_TESTS_SPLIT's expressions, such as "MOD 2", "DIV 8", "& 0x7", "|0b11".
int splitColor(const std::string& expression, int rank);

}  // namespace seqpar::perf
