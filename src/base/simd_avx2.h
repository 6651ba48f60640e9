// Sixteen lanes of fp32 as two AVX registers; needs AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "base/types.h"

namespace seqpar {

/// See LanesPortable.
struct LanesAvx2 {
  struct V {
    __m256 low, high;
  };

  static constexpr std::size_t kLanes = 16;

  static V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static V set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }

  static V fetch(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  template <class T>
  static __m256i fetch(const T* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  static V widen(const float*, V v) { return v; }
  static V widen(const Bfloat16*, __m256i raw) {
    return {toUpper(_mm256_castsi256_si128(raw)), toUpper(_mm256_extracti128_si256(raw, 1))};
  }
  static V widen(const Half*, __m256i raw) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(raw)), _mm256_cvtph_ps(_mm256_extracti128_si256(raw, 1))};
  }

  static V narrow(const float*, V v) { return v; }
  static __m256i narrow(const Half*, V v) {
    const __m128i low = _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT), 1);
  }
  static __m256i narrow(const Bfloat16*, V v) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(roundToUpper(v.low), roundToUpper(v.high)), 0xd8);
  }

  static void store(float* to, V v) {
    _mm256_storeu_ps(to, v.low);
    _mm256_storeu_ps(to + 8, v.high);
  }
  template <class T>
  static void store(T* to, __m256i raw) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), raw);
  }

  static void stream(float* to, V v) {
    _mm256_stream_ps(to, v.low);
    _mm256_stream_ps(to + 8, v.high);
  }
  template <class T>
  static void stream(T* to, __m256i raw) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), raw);
  }
  static void fence() { _mm_sfence(); }

  static V multiplyAdd(V c, V x, V s) {
    return {multiplyAdd(c.low, x.low, s.low), multiplyAdd(c.high, x.high, s.high)};
  }

 private:
  static __m256 multiplyAdd(__m256 c, __m256 x, __m256 s) {
    const __m256 forgets = _mm256_cmp_ps(c, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return _mm256_blendv_ps(_mm256_fmadd_ps(c, x, s), s, forgets);
  }
  static __m256 toUpper(__m128i raw) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16)); }
  static __m256i roundToUpper(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
  }
};

}  // namespace seqpar
