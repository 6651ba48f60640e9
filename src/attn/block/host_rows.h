// The host block kernel's work on rows of scores, vectorized for the processor.
#pragma once

#include <cstddef>

namespace seqpar::attn::rows {

/// The maximum; -inf if there are no elements.
float largest(const float* row, size_t count);

/// row = exp(row - shift), which is at most 0 up to rounding. Returns the sum.
float exponentiate(float* row, size_t count, float shift);

/// row = cap * tanh(row / cap).
void cap(float* row, size_t count, float cap);

/// gradient = row * (gradient - delta).
void softmaxGradient(const float* row, float* gradient, size_t count, float delta);

/// gradient = (gradient - delta) (1 - (capped / cap)^2), for scores that cap() has capped.
void capGradient(const float* capped, float* gradient, size_t count, float delta, float cap);

void scale(float* row, size_t count, float factor);
/// to = factor * from.
void scaledCopy(const float* from, size_t count, float factor, float* to);
/// to = a * to + b * from.
void blend(float* to, float a, const float* from, float b, size_t count);
float dot(const float* a, const float* b, size_t count);

}  // namespace seqpar::attn::rows
