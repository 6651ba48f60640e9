#include "attn/linear/chunk.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/sgemm.h"

// The loops below are compiled for several instruction sets; the loader takes the best that the processor has. Not with
// sanitizers: the loader would run their code before they have started.
#if defined(__x86_64__) && !defined(SEQPAR_SANITIZED)
#define SEQPAR_VECTOR_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define SEQPAR_VECTOR_CLONES
#endif

namespace seqpar::attn {
namespace {

SEQPAR_VECTOR_CLONES void multiplyRow(const float* factor, size_t count, float* row) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) row[i] *= factor[i];
}

SEQPAR_VECTOR_CLONES float dot(const float* a, const float* b, size_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

/// row *= factor, then the dot product of `row` with `other`.
SEQPAR_VECTOR_CLONES float multiplyRowAndDot(const float* factor, const float* other, size_t count, float* row) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) {
    row[i] *= factor[i];
    sum += row[i] * other[i];
  }
  return sum;
}

/// run *= decay, and row = source * run.
SEQPAR_VECTOR_CLONES void advance(const float* decay, const float* source, size_t count, float* run, float* row) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) {
    run[i] *= decay[i];
    row[i] = source[i] * run[i];
  }
}

/// row *= run, and run *= decay.
SEQPAR_VECTOR_CLONES void retreat(const float* decay, size_t count, float* run, float* row) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) {
    row[i] *= run[i];
    run[i] *= decay[i];
  }
}

SEQPAR_VECTOR_CLONES void scaledCopy(float factor, const float* from, size_t count, float* to) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

SEQPAR_VECTOR_CLONES void scaledAdd(float factor, const float* from, size_t count, float* to) {
#pragma omp simd
  for (size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

/// Scores of tokens begin ... end - 1 among themselves, pair by pair: a running product of decays for each key.
void diagonalScores(const float* q, const float* k, const float* decay, size_t begin, size_t end, size_t dk,
                    float* scores, float* key) {
  for (size_t j = begin; j < end; ++j) {
    std::copy_n(k + j * dk, dk, key);
    scores[j * kChunk + j] = dot(key, q + j * dk, dk);
    for (size_t i = j + 1; i < end; ++i) {
      scores[i * kChunk + j] = multiplyRowAndDot(decay + i * dk, q + i * dk, dk, key);
    }
  }
}

}  // namespace

SEQPAR_VECTOR_CLONES void addLogDecays(const float* logDecay, size_t rows, size_t dk, double* sums) {
  for (size_t t = 0; t < rows; ++t) {
#pragma omp simd
    for (size_t i = 0; i < dk; ++i) sums[i] += static_cast<double>(logDecay[t * dk + i]);
  }
}

// exp(x) = 2^n exp(r) with n the nearest integer to x / ln 2, so that |r| <= ln(2) / 2, and a polynomial for exp(r).
// 2^n is applied in two halves, which lets results become subnormal as they should.
SEQPAR_VECTOR_CLONES void exponentiate(const float* logarithms, size_t count, float* factors) {
  constexpr float kLowest = -105.0f;       // below it, exp rounds to 0
  constexpr float kHighest = 128.0f;       // above it, exp is infinite
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  constexpr uint32_t kRounderBits = std::bit_cast<uint32_t>(kRounder);
#pragma omp simd
  for (size_t i = 0; i < count; ++i) {
    float x = logarithms[i];
    x = x < kLowest ? kLowest : x;
    x = x > kHighest ? kHighest : x;
    const float shifted = x * 1.44269504f + kRounder;
    const float n = shifted - kRounder;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = (p * r) * r + r + 1.0f;
    const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - kRounderBits + 256;
    const uint32_t half = exponent / 2;
    const float scaleA = std::bit_cast<float>((half - 1) << 23);
    const float scaleB = std::bit_cast<float>((exponent - half - 1) << 23);
    factors[i] = p * scaleA * scaleB;
  }
}

void decayKeysToEnd(const float* decay, size_t rows, size_t dk, float* k, float* product) {
  std::fill_n(product, dk, 1.0f);
  for (size_t t = rows; t-- > 0;) retreat(decay + t * dk, dk, product, k + t * dk);
}

void decayQueriesFromStart(const float* decay, size_t rows, size_t dk, float* q, float* product) {
  std::fill_n(product, dk, 1.0f);
  for (size_t t = 0; t < rows; ++t) advance(decay + t * dk, q + t * dk, dk, product, q + t * dk);
}

void scoresOfChunk(const float* q, const float* decay, size_t rows, size_t dk, float* k, float* product, float* scores,
                   float* scratch) {
  float* const decayedQueries = scratch;
  float* const run = scratch + kSubBlock * dk;
  std::fill_n(product, dk, 1.0f);
  for (size_t begin = 0; begin < rows; begin += kSubBlock) {
    const size_t end = std::min(begin + kSubBlock, rows);
    diagonalScores(q, k, decay, begin, end, dk, scores, run);
    for (size_t i = begin; i < end; ++i) std::fill(scores + i * kChunk + i + 1, scores + i * kChunk + rows, 0.0f);

    // Keys of earlier sub-blocks are already decayed to the start of this one.
    std::fill_n(run, dk, 1.0f);
    for (size_t i = begin; i < end; ++i) {
      advance(decay + i * dk, q + i * dk, dk, run, decayedQueries + (i - begin) * dk);
    }
    if (begin > 0) {
      multiply(end - begin, begin, dk, {decayedQueries, dk}, {k, dk, true}, false, scores + begin * kChunk, kChunk);
    }

    for (size_t j = 0; j < begin; ++j) multiplyRow(run, dk, k + j * dk);
    multiplyRow(run, dk, product);
    decayKeysToEnd(decay + begin * dk, end - begin, dk, k + begin * dk, run);
  }
}

SEQPAR_VECTOR_CLONES bool allFinite(const float* numbers, size_t count) {
  float sum = 0;  // stays 0: a finite number times 0 is 0, others are NaN
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) sum += numbers[i] * 0.0f;
  return sum == 0.0f;
}

void addRow(const float* decay, const float* q, const float* row, size_t rows, size_t dk, size_t dv, float* out) {
  float product = 1.0f;
  for (size_t t = 0; t < rows; ++t) {
    product *= decay[t * dk];
    if (product == 0.0f) return;
    scaledAdd(q[t * dk], row, dv, out + t * dv);
  }
}

void scaleState(const float* factor, const float* from, size_t dk, size_t dv, float* state) {
  for (size_t d = 0; d < dk; ++d) {
    if (factor[d] != 0.0f) {
      scaledCopy(factor[d], from + d * dv, dv, state + d * dv);
    } else {
      std::fill_n(state + d * dv, dv, 0.0f);
    }
  }
}

void addDecayedState(const float* factor, const float* incoming, size_t dk, size_t dv, float* state) {
  for (size_t d = 0; d < dk; ++d) {
    if (factor[d] != 0.0f) scaledAdd(factor[d], incoming + d * dv, dv, state + d * dv);
  }
}

}  // namespace seqpar::attn
