// The settings that all perf binaries share.
#pragma once

#include <string>
#include <vector>

#include "options.h"

namespace seqpar::perf {

/// How the times of the ranks become one time.
enum class Average { Rank0 = 0, Mean = 1, Least = 2, Most = 3 };

struct Settings {
  size_t minBytes = 2 << 20;
  size_t maxBytes = 2 << 20;
  size_t stepBytes = 1 << 20;
  size_t factor = 1;  ///< 1: stepBytes is added; else sizes are multiplied by it
  bool sizesGiven = false;
  bool maxGiven = false;
  int iterations = 20;
  int warmup = 5;
  int repeats = 5;
  double loopSeconds = 1;  ///< loops that would take longer are shortened; 0: never
  bool check = true;
  bool blocking = true;  ///< never on GPUs
  bool barrier = false;
  bool perIteration = false;
  bool peers = false;
  Average average = Average::Most;
  int threads = 0;  ///< 0: not given
  bool gpu = false;
  int gpus = 0;        ///< how many GPUs of a host to use; 0: all
  bool graph = false;  ///< loops are CUDA graphs
  std::string jsonPath;
  std::string plotPath;
  int timeoutMs = 0;  ///< 0: the library's default

  /// Adds the options that set these fields.
  void addTo(OptionParser& parser);
  /// Throws UsageError where fields contradict each other. Call after parsing.
  void finish();
  /// The sizes that -b, -e, -i and -f stand for.
  std::vector<size_t> sizes() const;
};

}  // namespace seqpar::perf
