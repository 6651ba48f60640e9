// A case on a simulated machine: records all ranks' work with the library's code, then executes it on virtual time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/player.h"
#include "machine.h"
#include "seqpar/attn_plan.h"
#include "seqpar/scan.h"

namespace seqpar::sim {

/// One attention operator, or one All-Scan.
struct Case {
  int ranks = 1;
  // Attention.
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  int layout = -1;  ///< a seqparLayoutKind_t; -1: the algorithm's
  // All-Scan; used if scanBytes is not 0.
  int64_t scanBytes = 0;
  seqparAllScanParams_t scan = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  // A step of a ring of one tensor; used if ringBytes is not 0.
  int64_t ringBytes = 0;
  // An exchange of this many bytes of a rank: see exchangeNames(); used if exchangeBytes is not 0.
  int64_t exchangeBytes = 0;
  std::string exchange;

  bool mapped = false;   ///< the caller's memory is of seqparMemAlloc(), which ranks of a node map on hosts
  int calls = 1;         ///< of an All-Scan, exchange or step of a ring, one after the other; times are of one call
  int traced = 0;        ///< ranks with spans
  bool ordered = false;  ///< Outcome::order is wanted
};

struct Outcome {
  std::string algorithm;
  std::string refusal;                             ///< not empty: the library refuses the case; the rest is unset
  double forwardUs = 0, stepUs = 0;                ///< slowest rank
  double forwardExposedUs = 0, stepExposedUs = 0;  ///< of it, time without a kernel on the caller's stream
  double waitingUs = 0;                            ///< exposed time in a step, mean of the ranks
  double localBytes = 0, networkBytes = 0;         ///< sent in a step, mean of the ranks
  double workspaceBytes = 0;                       ///< largest of the ranks
  std::string explain;                             ///< seqparAttnPlanExplain() of rank 0
  uint64_t events = 0;
  std::string order;  ///< CSV rank,kind,peer,bytes: the messages of each rank in its order, by streams
  std::vector<Span> spans;
};

/// Throws std::runtime_error if the library fails in another way than by a refusal.
Outcome run(const Machine& machine, const Case& given);

/// Names of Case::exchange. The bytes are those of perf's binaries: of the sent tensor, of the gathered one, of a
/// rank's heads.
const std::vector<std::string>& exchangeNames();

/// The algorithm that the library chooses, and its explanation.
std::string chosen(const Machine& machine, Case given, std::string& explain);

/// Ids of all algorithms for softmax (or linear) attention.
std::vector<int> algorithmsFor(bool softmax);

}  // namespace seqpar::sim
