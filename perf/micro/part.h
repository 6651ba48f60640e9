// Common code of the micro benchmarks: a part of the library, run by one rank.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/session.h"

namespace seqpar::perf {

/// A binary with rows identified by `labels`. Ranks (one by default) are independent. `onGpu`: refuses to run on hosts.
inline Program partProgram(std::string name, std::string summary, std::vector<Column> labels,
                           std::vector<Column> extras, bool onGpu, std::function<void(Session&)> body) {
  Program program;
  program.name = std::move(name);
  program.summary = std::move(summary);
  program.knowsGpus = onGpu;
  program.hasPeers = false;
  program.addOptions = [](OptionParser&) {};
  program.checkOptions = [onGpu](Settings& settings) {
    if (onGpu && !settings.gpu) throw UsageError("option --device: this measures kernels, so give it a GPU by -g 1");
    if (settings.threads == 0 && settings.devices == 0) settings.threads = 1;
  };
  program.layout = [labels = std::move(labels), extras = std::move(extras)] { return Layout{labels, false, extras}; };
  program.body = std::move(body);
  return program;
}

/// A work without preparation; tests check its results.
inline Work partWork(std::function<void()> run, double timesPerIteration = 1) {
  Work work;
  work.prepare = [] {};
  work.run = std::move(run);
  work.wrong = [] { return size_t{0}; };
  work.timesPerIteration = timesPerIteration;
  return work;
}

/// The measured rows of `cases`, compared with the last one: `percent` of a row is the time of the last row over the
/// row's.
inline std::vector<Row> measureTogether(Session& session, std::vector<Case>& cases, RowKind kind) {
  cases.back().row.kind = kind;
  std::vector<Row> rows = session.measure(cases);
  for (Row& row : rows) row.extras = {100 * rows.back().outOfPlace.us / row.outOfPlace.us};
  return rows;
}

}  // namespace seqpar::perf
