#include "exchange/combine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/convert.h"

namespace seqpar {
namespace {

/// The terms in fp32: in place if they are fp32, otherwise converted into `scratch`.
const float* inFloat(const void* terms, seqparDataType_t type, size_t count, float* scratch) {
  if (type == seqparFloat32) return static_cast<const float*>(terms);
  toFloat(terms, type, scratch, count);
  return scratch;
}

}  // namespace

void setTerm(float* sum, const void* terms, seqparDataType_t type, size_t count) {
  toFloat(terms, type, sum, count);
}

void addTerm(float* __restrict__ sum, const void* terms, seqparDataType_t type, size_t count) {
  float scratch[kCombined];
  const float* __restrict__ x = inFloat(terms, type, count, scratch);
  for (size_t i = 0; i < count; ++i) sum[i] += x[i];
}

void addTerm(float* __restrict__ sum, const void* terms, seqparDataType_t type, size_t count, float factor) {
  if (factor == 0) return;
  float scratch[kCombined];
  const float* __restrict__ x = inFloat(terms, type, count, scratch);
  for (size_t i = 0; i < count; ++i) sum[i] += factor * x[i];
}

float mergeLse(const float* lse, float* weights, size_t count) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  float most = kNothing;
  for (size_t r = 0; r < count; ++r) {
    most = std::isnan(lse[r]) ? lse[r] : std::max(most, lse[r]);
    if (std::isnan(most)) break;
  }
  if (most == kNothing) {
    std::fill_n(weights, count, 0.0f);
    return kNothing;
  }
  float sum = 0;
  for (size_t r = 0; r < count; ++r) {
    weights[r] = lse[r] == kNothing ? 0 : std::exp(lse[r] - most);
    sum += weights[r];
  }
  // Not exp(lse - merged): merged is rounded, and for large values the rounding error would be visible.
  for (size_t r = 0; r < count; ++r) weights[r] /= sum;
  return most + std::log(sum);
}

}  // namespace seqpar
