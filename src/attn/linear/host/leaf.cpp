// The scores of a leaf's tokens among themselves under decays per channel, and their gradients.
#include "attn/linear/host/scores.h"
#include "attn/linear/host/vector.h"
#include "base/simd.h"
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

/// Lanes 0, 1, 2 and 3 of each result's quarters are the sums of the same quarter of a, b, c and d.
[[gnu::always_inline]] inline void sumsOfQuarters(const V16& a, const V16& b, const V16& c, const V16& d, V16& to) {
  const V16 ab = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                 __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  const V16 cd = __builtin_shufflevector(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                 __builtin_shufflevector(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  to = __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
       __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

/// The sums of 16 vectors.
[[gnu::always_inline]] inline void sumsOf(const V16 (&v)[kLanes], V16& to) {
  V16 quarters[4];
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    sumsOfQuarters(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3], quarters[i]);
  }
  V16 halves[2];
#pragma GCC unroll 2
  for (size_t i = 0; i < 2; ++i) {
    const V16 &a = quarters[2 * i], &b = quarters[2 * i + 1];
    halves[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
  to = __builtin_shufflevector(halves[0], halves[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
       __builtin_shufflevector(halves[0], halves[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

constexpr size_t kBlock = 4;  ///< queries and keys of a register block

/// blockScores() of a register block.
[[gnu::always_inline]] inline void registerBlock(const float* q, const float* k, size_t dk, float* scores,
                                                 size_t stride) {
  V16 sum[kBlock * kBlock] = {};
  for (size_t d = 0; d < dk; d += kLanes) {
    V16 key[kBlock], query;
#pragma GCC unroll 4
    for (size_t j = 0; j < kBlock; ++j) load(k + j * dk + d, key[j]);
#pragma GCC unroll 4
    for (size_t i = 0; i < kBlock; ++i) {
      load(q + i * dk + d, query);
#pragma GCC unroll 4
      for (size_t j = 0; j < kBlock; ++j) sum[i * kBlock + j] += query * key[j];
    }
  }
  V16 all;
  sumsOf(sum, all);
#pragma GCC unroll 4
  for (size_t i = 0; i < kBlock; ++i) {
    __builtin_memcpy(scores + i * stride, reinterpret_cast<const char*>(&all) + i * sizeof(V4), sizeof(V4));
  }
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

SEQPAR_VECTOR_CLONES void blockScores(const float* q, size_t queries, const float* k, size_t keys, size_t dk,
                                      float* scores, size_t stride) {
  // Shorter vectors have too few registers for a block: 3 to 6 times as slow as a product.
  static const bool wide = kHasVectorClones && bestIsa() == Isa::Avx512;
  if (!wide || queries % kBlock != 0 || keys % kBlock != 0 || dk % kLanes != 0) {
    return multiply(queries, keys, dk, {q, dk}, {k, dk, true}, false, scores, stride);
  }
  for (size_t i = 0; i < queries; i += kBlock) {
    for (size_t j = 0; j < keys; j += kBlock) {
      registerBlock(q + i * dk, k + j * dk, dk, scores + i * stride + j, stride);
    }
  }
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
