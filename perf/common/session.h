// The main function of every perf binary: options, launch, header, rows, footer, exit status.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "report.h"

namespace seqpar::perf {

/// One row to be measured.
struct Case {
  Row row;                      ///< without its times and extras
  Work outOfPlace;              ///<
  std::optional<Work> inPlace;  ///< present if the layout has an in-place half
};

/// What the body of a perf binary works with, on each rank.
struct Session {
  Group& group;
  const Settings& settings;
  Report& report;
  /// What collectives are to be given as their stream: of the GPU, a host stream, or null for blocking calls.
  void* stream = nullptr;

  /// Collective: measures rows that are to be compared, prints nothing.
  std::vector<Row> measure(std::vector<Case>& cases);
  /// Waits for the work on `stream`.
  void wait();
};

/// A perf binary.
struct Program {
  std::string name, summary;
  size_t defaultBytes = 32 << 20;  ///< the size where none is given
  bool hasPeers = true;            ///< measures something beside the library with --peers
  bool knowsGpus = false;          ///< gives collectives nothing but Buffer::data() and Session::stream
  std::function<void(OptionParser&)> addOptions;
  std::function<void(Settings&)> checkOptions;  ///< after parsing; throws UsageError; may be empty
  std::function<Layout()> layout;
  std::function<void(Session&)> body;  ///< on each rank; in the threads mode by several threads at once
};

/// Exit status: 0; 1 for wrong results, too little bandwidth or a failed run; 2 for arguments that cannot be
/// understood.
int runProgram(const Program& program, int argc, char** argv);

}  // namespace seqpar::perf
