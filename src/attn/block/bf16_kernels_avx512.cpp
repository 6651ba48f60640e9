#include <immintrin.h>

#include "attn/block/bf16_softmax.h"

namespace seqpar::attn {
namespace {

/// Four rows and Columns vectors of c.
template <std::size_t Columns>
void block(std::size_t k, const uint16_t* a, std::size_t strideA, const uint32_t* b, bool accumulate, float* c) {
  __m512 sum[4][Columns];
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < Columns; ++j) {
      sum[i][j] = accumulate ? _mm512_loadu_ps(c + i * kTileQueries + j * 16) : _mm512_setzero_ps();
    }
  }
  for (std::size_t p = 0; p < k; p += 2, b += kTileQueries) {
    __m512i row[Columns];
    for (std::size_t j = 0; j < Columns; ++j) row[j] = _mm512_loadu_si512(b + j * 16);
    for (std::size_t i = 0; i < 4; ++i) {
      int pair = 0;
      __builtin_memcpy(&pair, a + i * strideA + p, sizeof pair);
      const __m512i left = _mm512_set1_epi32(pair);
      for (std::size_t j = 0; j < Columns; ++j) {
        sum[i][j] = _mm512_dpbf16_ps(sum[i][j], reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(row[j]));
      }
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < Columns; ++j) _mm512_storeu_ps(c + i * kTileQueries + j * 16, sum[i][j]);
  }
}

void multiply(std::size_t m, std::size_t n, std::size_t k, const uint16_t* a, std::size_t strideA, const uint32_t* b,
              bool accumulate, float* c) {
  const auto rows = [&](auto&& one) {
    for (std::size_t i = 0; i < m; i += 4) one(k, a + i * strideA, strideA, b, accumulate, c + i * kTileQueries);
  };
  if (n == 64) return rows(block<4>);
  if (n == 48) return rows(block<3>);
  if (n == 32) return rows(block<2>);
  rows(block<1>);
}

/// a and b in bf16, one after the other.
inline __m512i rounded(__m512 a, __m512 b) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
}

/// 16 queries of a GradientTile.
struct GradientGroup {
  Group group;
  const float* products;
  __m512 lse, delta;

  GradientGroup(const GradientTile& tile, std::size_t query)
      : group(tile.scores + query, tile.firstKey + query, tile.endKey + query, tile.factor),
        products(tile.products + query),
        lse(_mm512_loadu_ps(tile.lse + query)),
        delta(_mm512_loadu_ps(tile.delta + query)) {}

  struct Values {
    __m512 weight, gradient;
  };
  Values at(std::size_t key) const {
    const __mmask16 seen = group.seen(key);
    const __m512 weight = _mm512_maskz_mov_ps(seen, powerOfTwo(_mm512_fmsub_ps(group.score(key), group.factor, lse)));
    const __m512 product = _mm512_sub_ps(_mm512_loadu_ps(products + key * kTileQueries), delta);
    return {weight, _mm512_maskz_mul_ps(seen, weight, product)};
  }
};

void gradient(const GradientTile& tile) {
  for (std::size_t query = 0; query < tile.queries; query += 32) {
    const GradientGroup low(tile, query), high(tile, query + 16);
    for (std::size_t key = 0; key < tile.keys; key += 2) {
      const auto a = low.at(key), b = high.at(key), c = low.at(key + 1), d = high.at(key + 1);
      const std::size_t row = key * kTileQueries + query, pair = key / 2 * kTileQueries + query;
      _mm512_storeu_si512(tile.weights + row, rounded(a.weight, b.weight));
      _mm512_storeu_si512(tile.weights + row + kTileQueries, rounded(c.weight, d.weight));
      _mm512_storeu_si512(tile.gradients + row, rounded(a.gradient, b.gradient));
      _mm512_storeu_si512(tile.gradients + row + kTileQueries, rounded(c.gradient, d.gradient));
      _mm512_storeu_si512(tile.gradientPairs + pair, pairs(a.gradient, c.gradient));
      _mm512_storeu_si512(tile.gradientPairs + pair + 16, pairs(b.gradient, d.gradient));
    }
  }
}

void rescale(std::size_t m, std::size_t n, const float* kept, float* c) {
  for (std::size_t q = 0; q < n; q += 16) {
    const __m512 factor = _mm512_loadu_ps(kept + q);
    for (std::size_t i = 0; i < m; ++i) {
      float* const at = c + i * kTileQueries + q;
      _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), factor));
    }
  }
}

inline __m128i load(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

inline void store(void* to, __m128i value) {
  _mm_storeu_si128(static_cast<__m128i*>(to), value);
}

void pair(std::size_t rows, std::size_t columns, const uint16_t* from, std::size_t strideFrom, uint32_t* to) {
  const auto widened = [](const uint16_t* at) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  };
  for (std::size_t i = 0; i < rows; i += 2, to += kTileQueries) {
    for (std::size_t j = 0; j < columns; j += 16) {
      const uint16_t* const at = from + i * strideFrom + j;
      _mm512_storeu_si512(to + j, _mm512_or_si512(widened(at), _mm512_slli_epi32(widened(at + strideFrom), 16)));
    }
  }
}

/// to[j][i] = from[i][j] for i and j below 16: pairs, quads and octets of rows are interleaved in turn.
void transpose16x16(const uint32_t* from, std::size_t strideFrom, uint32_t* to, std::size_t strideTo) {
  __m512i a[16], b[16];
  for (std::size_t i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * strideFrom);
  for (std::size_t i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (std::size_t i = 0; i < 16; i += 4) {  // a[i + x]: columns x, x + 4, x + 8 and x + 12 of rows i to i + 3
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  for (std::size_t x = 0; x < 4; ++x) {
    const __m512i even = _mm512_shuffle_i32x4(a[x], a[x + 4], 0x88), odd = _mm512_shuffle_i32x4(a[x], a[x + 4], 0xdd);
    const __m512i evenBelow = _mm512_shuffle_i32x4(a[x + 8], a[x + 12], 0x88),
                  oddBelow = _mm512_shuffle_i32x4(a[x + 8], a[x + 12], 0xdd);
    _mm512_storeu_si512(to + x * strideTo, _mm512_shuffle_i32x4(even, evenBelow, 0x88));
    _mm512_storeu_si512(to + (x + 4) * strideTo, _mm512_shuffle_i32x4(odd, oddBelow, 0x88));
    _mm512_storeu_si512(to + (x + 8) * strideTo, _mm512_shuffle_i32x4(even, evenBelow, 0xdd));
    _mm512_storeu_si512(to + (x + 12) * strideTo, _mm512_shuffle_i32x4(odd, oddBelow, 0xdd));
  }
}

void transpose4x4(const uint32_t* from, std::size_t strideFrom, uint32_t* to, std::size_t strideTo) {
  const __m128i r0 = load(from), r1 = load(from + strideFrom), r2 = load(from + 2 * strideFrom),
                r3 = load(from + 3 * strideFrom);
  const __m128i a = _mm_unpacklo_epi32(r0, r1), b = _mm_unpackhi_epi32(r0, r1);
  const __m128i c = _mm_unpacklo_epi32(r2, r3), d = _mm_unpackhi_epi32(r2, r3);
  store(to, _mm_unpacklo_epi64(a, c));
  store(to + strideTo, _mm_unpackhi_epi64(a, c));
  store(to + 2 * strideTo, _mm_unpacklo_epi64(b, d));
  store(to + 3 * strideTo, _mm_unpackhi_epi64(b, d));
}

void transpose32(std::size_t rows, std::size_t columns, const uint32_t* from, std::size_t strideFrom, uint32_t* to,
                 std::size_t strideTo) {
  const bool wide = rows % 16 == 0 && columns % 16 == 0;
  const std::size_t step = wide ? 16 : 4;
  for (std::size_t i = 0; i < rows; i += step) {
    for (std::size_t j = 0; j < columns; j += step) {
      const uint32_t* const f = from + i * strideFrom + j;
      uint32_t* const t = to + j * strideTo + i;
      if (wide) {
        transpose16x16(f, strideFrom, t, strideTo);
      } else {
        transpose4x4(f, strideFrom, t, strideTo);
      }
    }
  }
}

void transpose16(std::size_t rows, std::size_t columns, const uint16_t* from, std::size_t strideFrom, uint16_t* to,
                 std::size_t strideTo) {
  for (std::size_t i = 0; i < rows; i += 8) {
    for (std::size_t j = 0; j < columns; j += 8) {
      const uint16_t* const f = from + i * strideFrom + j;
      __m128i pairs[8], quads[8];
      for (std::size_t x = 0; x < 8; x += 2) {  // elements of rows x and x + 1, alternating
        const __m128i upper = load(f + x * strideFrom), lower = load(f + (x + 1) * strideFrom);
        pairs[x] = _mm_unpacklo_epi16(upper, lower);
        pairs[x + 1] = _mm_unpackhi_epi16(upper, lower);
      }
      for (std::size_t x = 0; x < 8; x += 4) {  // of four rows: columns 0 and 1, 2 and 3, 4 and 5, 6 and 7
        quads[x] = _mm_unpacklo_epi32(pairs[x], pairs[x + 2]);
        quads[x + 1] = _mm_unpackhi_epi32(pairs[x], pairs[x + 2]);
        quads[x + 2] = _mm_unpacklo_epi32(pairs[x + 1], pairs[x + 3]);
        quads[x + 3] = _mm_unpackhi_epi32(pairs[x + 1], pairs[x + 3]);
      }
      uint16_t* const t = to + j * strideTo + i;
      for (std::size_t x = 0; x < 4; ++x) {
        store(t + 2 * x * strideTo, _mm_unpacklo_epi64(quads[x], quads[x + 4]));
        store(t + (2 * x + 1) * strideTo, _mm_unpackhi_epi64(quads[x], quads[x + 4]));
      }
    }
  }
}

}  // namespace

constinit const Bf16Kernels kBf16Avx512 = {"AVX512-BF16", multiply,    softmaxTile, gradient, rescale,
                                           pair,          transpose16, transpose32, nullptr,  nullptr};

}  // namespace seqpar::attn
