// The arguments of seqparGlaForward(), checked.
#pragma once

#include "attn/linear/gla.h"

namespace seqpar::attn {

struct GlaArguments {
  GlaProblem problem;
  const float* initial = nullptr;  ///< null where it is not read
  float* savedState = nullptr;
  float* finalState = nullptr;
  seqparAllScanParams_t scan = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  seqparComm_t comm = nullptr;
  int ranks = 1;
};

/// Checks everything that can be checked on this rank alone; throws Error.
GlaArguments checkGla(const char* call, const void* q, const void* k, const void* v, const float* logDecay,
                      const float* initial, void* out, float* savedState, float* finalState,
                      const seqparGlaParams_t* params, seqparComm_t comm);

}  // namespace seqpar::attn
