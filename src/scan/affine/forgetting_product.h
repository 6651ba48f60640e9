// The product of a transition and a state.
#pragma once

#include <cstddef>

#include "base/sgemm.h"

namespace seqpar {

/// multiply(), except that a factor of exactly 0 in `a` discards its operand, even NaN and infinity.
void multiplyForgetting(size_t m, size_t n, size_t k, Factor a, Factor b, bool accumulate, float* c, size_t strideC);

}  // namespace seqpar
