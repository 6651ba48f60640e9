// The scores of a leaf's tokens among themselves under decays per channel, and their gradients.
#include "attn/linear/host/scores.h"
#include "attn/linear/host/vector.h"
#include "base/vector_loops.h"

namespace seqpar::attn::linear {
namespace {

constexpr size_t kLanes = 16;
typedef float V16 __attribute__((vector_size(64)));
typedef float V8 __attribute__((vector_size(32)));
typedef float V4 __attribute__((vector_size(16)));

[[gnu::always_inline]] inline void load(const float* from, V16& to) {
  __builtin_memcpy(&to, from, sizeof(V16));
}

[[gnu::always_inline]] inline float sumOf(const V16& v) {
  V8 halves[2];
  __builtin_memcpy(halves, &v, sizeof(v));
  const V8 half = halves[0] + halves[1];
  V4 quarters[2];
  __builtin_memcpy(quarters, &half, sizeof(half));
  const V4 quarter = quarters[0] + quarters[1];
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/// The scores of key J and the queries from J on. Sums of all queries at once: their additions do not wait for each
/// other.
template <size_t J>
[[gnu::always_inline]] inline void leafColumn(const float* q, const float* k, const float* decays, size_t dk,
                                              float* scores, size_t stride) {
  V16 sum[kLeaf] = {};
  for (size_t d = 0; d < dk; d += kLanes) {
    V16 key, query, decay;
    load(k + J * dk + d, key);
    load(q + J * dk + d, query);
    sum[J] += key * query;
#pragma GCC unroll 8
    for (size_t i = J + 1; i < kLeaf; ++i) {
      load(decays + i * dk + d, decay);
      load(q + i * dk + d, query);
      key *= decay;
      sum[i] += key * query;
    }
  }
#pragma GCC unroll 8
  for (size_t i = J; i < kLeaf; ++i) scores[i * stride + J] = sumOf(sum[i]);
}

/// leafScores() of any number of rows and keys.
SEQPAR_VECTOR_CLONES void anyLeafScores(const float* q, const float* k, const float* decays, size_t rows, size_t dk,
                                        float* scores, size_t stride, float* scratch) {
  for (size_t j = 0; j < rows; ++j) {
    const float* const key = k + j * dk;
    float own = 0;
#pragma omp simd reduction(+ : own)
    for (size_t d = 0; d < dk; ++d) {
      scratch[d] = key[d];
      own += key[d] * q[j * dk + d];
    }
    scores[j * stride + j] = own;
    for (size_t i = j + 1; i < rows; ++i) {
      const float* const decay = decays + i * dk;
      const float* const query = q + i * dk;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (size_t d = 0; d < dk; ++d) {
        scratch[d] *= decay[d];
        sum += scratch[d] * query[d];
      }
      scores[i * stride + j] = sum;
    }
  }
}

}  // namespace

SEQPAR_VECTOR_CLONES void leafScores(const float* q, const float* k, const float* decays, size_t rows, size_t dk,
                                     float* scores, size_t stride, float* scratch) {
  static_assert(kLeaf == 8);
  if (rows != kLeaf || dk % kLanes != 0) return anyLeafScores(q, k, decays, rows, dk, scores, stride, scratch);
  leafColumn<0>(q, k, decays, dk, scores, stride);
  leafColumn<1>(q, k, decays, dk, scores, stride);
  leafColumn<2>(q, k, decays, dk, scores, stride);
  leafColumn<3>(q, k, decays, dk, scores, stride);
  leafColumn<4>(q, k, decays, dk, scores, stride);
  leafColumn<5>(q, k, decays, dk, scores, stride);
  leafColumn<6>(q, k, decays, dk, scores, stride);
  leafColumn<7>(q, k, decays, dk, scores, stride);
}

SEQPAR_VECTOR_CLONES void leafGradients(const float* q, const float* k, const float* decays, const float* dScores,
                                        size_t stride, size_t rows, size_t dk, float* dq, float* dk_, float* scratch) {
  for (size_t d = 0; d < dk; ++d) scratch[d] = 1.0f;
  for (size_t t = 0; t < rows; ++t) {
    const float* const decay = decays + t * dk;
    float* const row = dq + t * dk;
#pragma omp simd
    for (size_t d = 0; d < dk; ++d) {
      scratch[d] *= decay[d];
      const float value = row[d] * scratch[d];
      row[d] = scratch[d] == 0.0f ? 0.0f : value;
    }
  }
  for (size_t d = 0; d < dk; ++d) scratch[d] = 1.0f;
  for (size_t t = rows; t-- > 0;) {
    const float* const decay = decays + t * dk;
    float* const row = dk_ + t * dk;
#pragma omp simd
    for (size_t d = 0; d < dk; ++d) {
      const float value = row[d] * scratch[d];
      row[d] = scratch[d] == 0.0f ? 0.0f : value;
      scratch[d] *= decay[d];
    }
  }
  for (size_t j = 0; j < rows; ++j) {
    const float* const key = k + j * dk;
    float* const dKey = dk_ + j * dk;
    const float own = dScores[j * stride + j];
#pragma omp simd
    for (size_t d = 0; d < dk; ++d) {
      dKey[d] += own * q[j * dk + d];
      dq[j * dk + d] += own * key[d];
      scratch[d] = 1.0f;
    }
    for (size_t i = j + 1; i < rows; ++i) {
      const float* const decay = decays + i * dk;
      const float* const query = q + i * dk;
      float* const dQuery = dq + i * dk;
      const float p = dScores[i * stride + j];
#pragma omp simd
      for (size_t d = 0; d < dk; ++d) {
        scratch[d] *= decay[d];
        const float product = p * scratch[d];
        const float weight = scratch[d] == 0.0f ? 0.0f : product;
        dQuery[d] += weight * key[d];
        dKey[d] += weight * query[d];
      }
    }
  }
}

}  // namespace seqpar::attn::linear
