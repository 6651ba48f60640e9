// Sixteen lanes of fp32 as one AVX-512 register; needs AVX-512F.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "base/types.h"

namespace seqpar {

/// See LanesPortable.
struct LanesAvx512 {
  using V = __m512;

  static constexpr std::size_t kLanes = 16;

  static V zero() { return _mm512_setzero_ps(); }
  static V set(float value) { return _mm512_set1_ps(value); }

  static V fetch(const float* from) { return _mm512_loadu_ps(from); }
  template <class T>
  static __m256i fetch(const T* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  static V widen(const float*, V v) { return v; }
  static V widen(const Bfloat16*, __m256i raw) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
  static V widen(const Half*, __m256i raw) { return _mm512_cvtph_ps(raw); }

  static V narrow(const float*, V v) { return v; }
  static __m256i narrow(const Half*, V v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
  static __m256i narrow(const Bfloat16*, V v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_epi32(upper, _mm512_set1_epi32(1));
    const __m512i up = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    // AVX-512's conversion instruction to bfloat16 flushes subnormals to zero.
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(up, nan, upper, _mm512_set1_epi32(0x40)));
  }

  static void store(float* to, V v) { _mm512_storeu_ps(to, v); }
  template <class T>
  static void store(T* to, __m256i raw) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), raw);
  }

  static void stream(float* to, V v) { _mm512_stream_ps(to, v); }
  template <class T>
  static void stream(T* to, __m256i raw) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), raw);
  }
  static void fence() { _mm_sfence(); }

  static V multiplyAdd(V c, V x, V s) {
    return _mm512_mask3_fmadd_ps(c, x, s, _mm512_cmp_ps_mask(c, _mm512_setzero_ps(), _CMP_NEQ_UQ));
  }
};

}  // namespace seqpar
