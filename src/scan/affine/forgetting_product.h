// The product of a transition with what it meets.
#pragma once

#include <cstddef>

#include "base/sgemm.h"

namespace seqpar {

/// multiply(), but a factor of exactly 0 in `a` forgets what it meets, NaN and infinity included.
void multiplyForgetting(size_t m, size_t n, size_t k, Factor a, Factor b, bool accumulate, float* c, size_t strideC);

}  // namespace seqpar
