// The cases that the options name, simulated and printed as tables.
#pragma once

#include <string>
#include <vector>

#include "machine.h"
#include "models.h"
#include "options.h"
#include "report.h"

namespace seqpar::sim {

/// The attention of a model for one number of tokens, and the timelines of its kinds of attention.
std::vector<Row> runModel(const Machine& machine, const Options& options, const Model& model, int ranks, int64_t tokens,
                          std::vector<Timeline>& timelines);
std::vector<Row> runScans(const Machine& machine, const Options& options, int ranks);
/// Steps of rings, or exchanges.
std::vector<Row> runTransfers(const Machine& machine, const Options& options, int ranks);

/// Keeps the timeline of the choice of `auto`, or of the fastest row.
void keepTimeline(const std::vector<Row>& rows, bool forwardOnly, std::vector<Timeline>& timelines);

}  // namespace seqpar::sim
