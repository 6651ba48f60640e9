// The arithmetic of reductions: rows of fp32 accumulators.
#pragma once

#include <cstddef>

#include "seqpar/seqpar.h"

namespace seqpar {

/// Elements that are combined at once: they stay in the first cache.
inline constexpr size_t kCombined = 2048;

/// sum = terms; 1 to kCombined elements of `type`.
void setTerm(float* sum, const void* terms, seqparDataType_t type, size_t count);
/// sum += terms.
void addTerm(float* sum, const void* terms, seqparDataType_t type, size_t count);
/// sum += factor * terms; nothing if the factor is 0.
void addTerm(float* sum, const void* terms, seqparDataType_t type, size_t count, float factor);

/// The factors of a merge of softmax results: with the logarithms lse[0..count) of the sums of exponentials of `count`
/// parts, writes weights[r] = exp(lse[r] - merged), and returns merged, the logarithm of the sum of all. A part of -inf
/// has nothing: its weight is 0. If all parts are -inf, so is the result. Natural logarithms.
float mergeLse(const float* lse, float* weights, size_t count);

}  // namespace seqpar
