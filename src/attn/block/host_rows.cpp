#include "attn/block/host_rows.h"

#include <bit>
#include <cstdint>
#include <limits>

#include "base/vector_loops.h"

namespace seqpar::attn::rows {
namespace {

/// exp(x) for x of at most 88: 2^n exp(r) with n the nearest integer to x / ln 2 and a polynomial for exp(r). Below
/// -88, where 2^n would be subnormal, it is 0. NaN stays NaN. The compiler joins both choices into one mask.
inline float exponential(float x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float bounded = x < -88.0f ? -88.0f : x;
  const float shifted = bounded * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  const float p = exponentialNearZero(r);
  const uint32_t bits = (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRounder) + 127u) << 23;
  return p * std::bit_cast<float>(bits);
}

/// tanh(x) = (1 - e) / (1 + e) with e = exp(-2 |x|). Near 0, where that cancels, its series.
inline float hyperbolicTangent(float x) {
  const float size = x < 0 ? -x : x;
  const float e = exponential(-2 * size);
  const float far = (1 - e) / (1 + e);
  const float square = x * x;
  const float near = size * (1 + square * (-1.0f / 3 + square * (2.0f / 15 - square * (17.0f / 315))));
  const float value = size < 0.25f ? near : far;
  return x < 0 ? -value : value;
}

}  // namespace

SEQPAR_VECTOR_CLONES float largest(const float* row, size_t count) {
  float most = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : most)
  for (size_t i = 0; i < count; ++i) most = row[i] > most ? row[i] : most;
  return most;
}

SEQPAR_VECTOR_CLONES float exponentiate(float* row, size_t count, float shift) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) {
    row[i] = exponential(row[i] - shift);
    sum += row[i];
  }
  return sum;
}

SEQPAR_VECTOR_CLONES void cap(float* row, size_t count, float cap) {
  const float inverse = 1 / cap;
#pragma omp simd
  for (size_t i = 0; i < count; ++i) row[i] = cap * hyperbolicTangent(row[i] * inverse);
}

SEQPAR_VECTOR_CLONES void softmaxGradient(const float* row, float* gradient, size_t count, float delta) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) gradient[i] = row[i] * (gradient[i] - delta);
}

SEQPAR_VECTOR_CLONES void capGradient(const float* capped, float* gradient, size_t count, float delta, float cap) {
  const float inverse = 1 / cap;
#pragma omp simd
  for (size_t i = 0; i < count; ++i)
    gradient[i] = (gradient[i] - delta) * (1 - capped[i] * inverse * (capped[i] * inverse));
}

SEQPAR_VECTOR_CLONES void scale(float* row, size_t count, float factor) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) row[i] *= factor;
}

SEQPAR_VECTOR_CLONES void scaledCopy(const float* from, size_t count, float factor, float* to) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

SEQPAR_VECTOR_CLONES void blend(float* to, float a, const float* from, float b, size_t count) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) to[i] = a * to[i] + b * from[i];
}

SEQPAR_VECTOR_CLONES float dot(const float* a, const float* b, size_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace seqpar::attn::rows
