// Between the passes: maps of segments become states before segments.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// In each (batch, head), from the first segment to the last or, for the backward, from the last to the first: the
/// states of `maps` become those before each segment (its own of the first in that order means nothing any more),
/// log-decays stay each segment's own. `state` and `logDecay` get the map of all segments; NULL: not wanted, and then
/// the last in that order is not read. `base`: as SegmentStates has it. `apart`: `maps` stay as they are. A
/// cudaError_t.
struct Fold {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  SegmentMaps maps;
  bool reverse = false, apart = false;
  float *state = nullptr, *logDecay = nullptr;
  const float* base = nullptr;
};
int launchFold(const Fold& fold, const Launch& launch);

}  // namespace seqpar::attn
