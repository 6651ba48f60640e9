// The arithmetic of reductions: rows of fp32 accumulators.
#pragma once

#include <cstddef>

#include "seqpar/seqpar.h"

namespace seqpar {

/// Elements combined at once: they stay in the L1 cache.
inline constexpr size_t kCombined = 2048;

/// sum = terms; 1 to kCombined elements of `type`.
void setTerm(float* sum, const void* terms, seqparDataType_t type, size_t count);
/// sum += terms.
void addTerm(float* sum, const void* terms, seqparDataType_t type, size_t count);
/// sum += factor * terms; nothing if the factor is 0.
void addTerm(float* sum, const void* terms, seqparDataType_t type, size_t count, float factor);

/// The factors of a merge of softmax results. lse[0..count) are the natural logarithms of the parts' sums of
/// exponentials. Writes weights[r] = exp(lse[r] - merged) and returns merged, the logarithm of the total sum. A part
/// with lse -inf is empty: its weight is 0. If all parts are -inf, so is the result.
float mergeLse(const float* lse, float* weights, size_t count);

}  // namespace seqpar
