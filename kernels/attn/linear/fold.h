// Between the passes: converts maps of segments to states before segments.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// In each (batch, head), from the first segment to the last or, for the backward, from the last to the first: replaces
/// the states of `maps` by the states before each segment (undefined for the first in that order); log-decays stay each
/// segment's own. `state` and `logDecay` receive the map of all segments; NULL: not written, and then the last segment
/// in that order is not read. `base`: as in SegmentStates. With PerSegment `maps` stay unchanged. Returns a
/// cudaError_t.
struct Fold {
  LinearProblem problem;
  Segments segments;
  HeadRange heads;
  StateMaps maps;
  bool reverse = false;
  Maps leaves = Maps::Prefix;
  float *state = nullptr, *logDecay = nullptr;
  const float* base = nullptr;
};
int launchFold(const Fold& fold, const Launch& launch);

}  // namespace seqpar::attn
