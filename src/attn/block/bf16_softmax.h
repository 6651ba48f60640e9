// The softmax of a tile of scores in bf16_kernels.h, for the kernels of AVX512-BF16 and of AMX: each source that
// includes this file gets its own copy, as both are compiled for different processors.
#pragma once

#include <immintrin.h>

#include "attn/block/bf16_kernels.h"

namespace seqpar::attn {
namespace {

constexpr float kLowest = -__builtin_huge_valf();

/// 2^x = 2^floor(x) p(x - floor(x)), relative error 2e-7. NaN stays NaN; below -200 it is 0.
inline __m512 powerOfTwo(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
  const __m512 r = _mm512_reduce_ps(x, 9);  // x - floor(x), without exceptions
  __m512 p = _mm512_set1_ps(1.8775767e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.9893397e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5826318e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4015361e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9315308e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.9999994e-1f));
  return _mm512_scalef_ps(p, x);
}

/// The elements of a (low halves) and b in bf16.
inline __m512i pairs(__m512 a, __m512 b) {
  const __m512i alternating = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                               6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(alternating, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
}

/// 16 queries of a tile.
struct Group {
  const float* scores;
  __m512i first, end;
  __m512 factor;

  Group(const float* scoresOf, const int32_t* firstKey, const int32_t* endKey, float factorOf)
      : scores(scoresOf),
        first(_mm512_loadu_si512(firstKey)),
        end(_mm512_loadu_si512(endKey)),
        factor(_mm512_set1_ps(factorOf)) {}

  __mmask16 seen(std::size_t key) const {
    const __m512i at = _mm512_set1_epi32(static_cast<int>(key));
    return _mm512_cmpge_epi32_mask(at, first) & _mm512_cmplt_epi32_mask(at, end);
  }
  bool seesAll(std::size_t keys) const {
    return _mm512_reduce_max_epi32(first) <= 0 &&
           static_cast<long>(_mm512_reduce_min_epi32(end)) >= static_cast<long>(keys);
  }
  __m512 score(std::size_t key) const { return _mm512_loadu_ps(scores + key * kTileQueries); }
  /// The largest score times factor, and `most`. NaN scores do not count.
  __m512 largest(std::size_t keys, bool all, __m512 most) const {
    if (!all) {
      for (std::size_t key = 0; key < keys; ++key) {
        most = _mm512_max_ps(_mm512_mask_mul_ps(_mm512_set1_ps(kLowest), seen(key), score(key), factor), most);
      }
      return most;
    }
    __m512 of[4];  // independent maxima
    for (auto& one : of) one = _mm512_set1_ps(kLowest);
    for (std::size_t key = 0; key < keys; key += 4) {
      for (std::size_t i = 0; i < 4; ++i) of[i] = _mm512_max_ps(score(key + i), of[i]);
    }
    const __m512 largest = _mm512_max_ps(_mm512_max_ps(of[0], of[1]), _mm512_max_ps(of[2], of[3]));
    return _mm512_max_ps(_mm512_mul_ps(largest, factor), most);
  }
  /// 2^(score factor - shift); 0 for queries that do not see the key.
  __m512 weight(std::size_t key, bool all, __m512 shift) const {
    const __m512 value = powerOfTwo(_mm512_fmsub_ps(score(key), factor, shift));
    return all ? value : _mm512_maskz_mov_ps(seen(key), value);
  }
};

constexpr float kSlack = 8;  ///< in base 2: weights are at most 2^kSlack

template <bool All>
inline bool softmaxOf(const SoftmaxTile& tile, std::size_t query, const Group& group) {
  const __m512 before = _mm512_loadu_ps(tile.most + query);
  const __m512 largest = group.largest(tile.keys, All, before);
  // A subtrahend up to kSlack below the largest score serves as well, and leaves earlier results as they are.
  const __mmask16 far = _mm512_cmp_ps_mask(largest, _mm512_add_ps(before, _mm512_set1_ps(kSlack)), _CMP_GT_OQ);
  const __m512 most = _mm512_mask_mov_ps(before, far, largest);
  // Without a visible score there is no maximum to subtract.
  const __mmask16 none = _mm512_cmpeq_ps_mask(most, _mm512_set1_ps(kLowest));
  const __m512 shift = _mm512_mask_mov_ps(most, none, _mm512_setzero_ps());
  const __m512 kept = _mm512_mask_mov_ps(powerOfTwo(_mm512_sub_ps(before, shift)), _mm512_cmpeq_ps_mask(before, shift),
                                         _mm512_set1_ps(1.0f));
  __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
  for (std::size_t key = 0; key < tile.keys; key += 2) {
    const __m512 a = group.weight(key, All, shift), b = group.weight(key + 1, All, shift);
    even = _mm512_add_ps(even, a);
    odd = _mm512_add_ps(odd, b);
    _mm512_storeu_si512(tile.weights + key / 2 * kTileQueries + query, pairs(a, b));
  }
  _mm512_storeu_ps(tile.most + query, most);
  _mm512_storeu_ps(tile.sum + query,
                   _mm512_fmadd_ps(_mm512_loadu_ps(tile.sum + query), kept, _mm512_add_ps(even, odd)));
  _mm512_storeu_ps(tile.kept + query, kept);
  return _mm512_cmpneq_ps_mask(kept, _mm512_set1_ps(1.0f)) != 0;
}

inline bool softmaxTile(const SoftmaxTile& tile) {
  bool changed = false;
  for (std::size_t query = 0; query < tile.queries; query += 16) {
    const Group group(tile.scores + query, tile.firstKey + query, tile.endKey + query, tile.factor);
    // The largest score is that of the largest product with the factor unless the factor is negative.
    const bool all = tile.factor >= 0 && group.seesAll(tile.keys);
    changed |= all ? softmaxOf<true>(tile, query, group) : softmaxOf<false>(tile, query, group);
  }
  return changed;
}

}  // namespace
}  // namespace seqpar::attn
