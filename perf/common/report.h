// What rank 0 shows: the table on stdout in nccl-tests' form, and the same as JSON.
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
  /// Quiet where this rank does not speak for all.
  Report(std::string program, std::vector<std::string> arguments, Settings settings, Layout layout, bool quiet);

  /// Collective: describes the run and its ranks.
  void header(Group& group);
  /// A line that begins with '#'.
  void note(const std::string& text);
  /// The bandwidth average leaves out rows of limits.
  void row(const Row& row);
  /// Collective: the last lines; writes the JSON file.
  void footer(Group& group);

  /// Tells, on stderr and now and then, how far a long run is.
  void progress(const std::string& what);

  /// Results were wrong, the average bus bandwidth is less than it was to be, or nothing could be measured.
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
