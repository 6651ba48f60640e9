// Tables, CSV and timelines of simulated cases.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "run.h"

namespace seqpar::sim {

struct Row {
  int ranks = 0;
  std::string operation;  ///< softmax, a linear family, scan or ring
  int64_t size = 0;       ///< tokens, or bytes
  bool chosen = false;    ///< by `auto`
  int inner = 0;          ///< seqparAttnDesc_t::inner, if several are compared
  Outcome outcome;
  double tokensPerSecond = 0;  ///< per GPU, of the whole model; 0: not computed

  std::string name() const { return outcome.algorithm + (inner > 0 ? " inner=" + std::to_string(inner) : ""); }
};

void writeTable(std::ostream& out, const std::vector<Row>& rows, bool forwardOnly);
/// The keys with a guess as source; if not `all`, only the number of each object's.
void writeGuesses(std::ostream& out, const std::vector<std::string>& guesses, bool all);
void writeCsv(std::ostream& out, const std::vector<Row>& rows);

/// The executed operations of a row.
struct Timeline {
  std::string name;
  std::vector<Span> spans;
};

/// Chrome's trace event format, which Perfetto reads: a process for each rank, a thread for each stream.
void writeTrace(std::ostream& out, const std::vector<Timeline>& timelines);
/// The time of the pass, or of both.
double timeOf(const Outcome& outcome, bool forwardOnly);
/// The choice of `auto` with the modeled times of its explanation, and how it compares with the simulation.
void writeChoice(std::ostream& out, const std::string& choice, const std::string& explain, const std::vector<Row>& rows,
                 bool forwardOnly);

}  // namespace seqpar::sim
