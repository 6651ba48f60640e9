// A small descriptor of softmax attention for tests of plans.
#pragma once

#include "seqpar/attn_plan.h"

namespace seqpar::attn::test {

inline seqparAttnDesc_t smallDesc() {
  seqparAttnDesc_t d = SEQPAR_ATTN_DESC_INITIALIZER;
  d.tokens = 8;
  d.heads = 2;
  d.headDim = 4;
  return d;
}

}  // namespace seqpar::attn::test
