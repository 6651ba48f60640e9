// The main function of every perf binary: options, launch, header, rows, footer, exit status.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "report.h"

namespace seqpar::perf {

/// One row to measure.
struct Case {
  Row row;                      ///< without times and extras
  Work outOfPlace;              ///<
  std::optional<Work> inPlace;  ///< present if the layout has an in-place half
};

/// The context of a perf binary's body, on each rank.
struct Session {
  Group& group;
  const Settings& settings;
  Report& report;
  /// The `stream` argument for collectives: a GPU's stream, a host stream, or null for blocking calls.
  void* stream = nullptr;

  /// Collective: measures rows for comparison with each other; prints nothing.
  std::vector<Row> measure(std::vector<Case>& cases);
  /// Waits for the work on `stream`.
  void wait();
};

/// Calls visit(kind, bytes) for every size of every kind.
template <class Kind, class Visit>
void forEachSize(const Session& session, const std::vector<Kind>& kinds, const Visit& visit) {
  for (const auto& kind : kinds) {
    for (const size_t size : session.settings.sizes()) visit(kind, size);
  }
}

/// A perf binary.
struct Program {
  std::string name, summary;
  size_t defaultBytes = 32 << 20;  ///< the default size
  int leastRanks = 1;
  bool hasPeers = true;    ///< measures peers with --peers
  bool knowsGpus = false;  ///< passes only Buffer::data() and Session::stream to collectives
  std::function<void(OptionParser&)> addOptions;
  std::function<void(Settings&)> checkOptions;  ///< after parsing; throws UsageError; may be empty
  std::function<Layout()> layout;
  std::function<void(Session&)> body;  ///< on each rank; several ranks of a process run it concurrently
};

/// Exit status: 0; 1 for wrong results, too little bandwidth or a failed run; 2 for invalid arguments.
int runProgram(const Program& program, int argc, char** argv);

}  // namespace seqpar::perf
