// Rank 0's output: the table on stdout in nccl-tests' form, and its values as JSON.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "facts.h"
#include "json_file.h"
#include "row.h"

namespace seqpar::perf {

class Report {
 public:
  /// `quiet` on all ranks except the one that prints.
  Report(std::string program, std::vector<std::string> arguments, Settings settings, Layout layout, bool quiet);

  /// Collective: describes the run and its ranks.
  void header(Group& group);
  /// Prints a comment line, with a leading '#'.
  void note(const std::string& text);
  /// The bandwidth average excludes limits.
  void row(const Row& row);
  /// Collective: the last lines; writes the JSON file.
  void footer(Group& group);

  /// Occasionally reports the progress of a long run on stderr.
  void progress(const std::string& what);

  /// Results were wrong, the average bus bandwidth was below the required one, or nothing could be measured.
  bool failed() const { return totals_.wrong > 0 || !totals_.fastEnough || rows_ == 0; }

 private:
  void printFacts(const RunFacts& facts) const;
  void printColumns() const;

  std::string program_;
  std::vector<std::string> arguments_;
  Settings settings_;
  Layout layout_;
  bool quiet_;
  std::unique_ptr<JsonFile> json_;
  Totals totals_;
  size_t rows_ = 0, times_ = 0;
  double busSum_ = 0;
  std::chrono::steady_clock::time_point start_, lastProgress_;
};

}  // namespace seqpar::perf
