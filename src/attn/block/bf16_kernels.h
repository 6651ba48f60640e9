// The arithmetic of the host block kernel on bf16 inputs, for processors with AMX or AVX512-BF16. Scores are transposed
// (S^T = K Q^T, O^T = V^T P^T): a vector has 16 queries, so maxima and sums need no operation across its elements.
//
// The sources of the kernels must not use inline functions of shared headers; see base/simd.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace seqpar::attn {

/// Queries of a tile: the row length of scores, weights and transposed results.
constexpr std::size_t kTileQueries = 64;
/// Keys of a tile.
constexpr std::size_t kTileKeys = 128;

/// One step of the online softmax over a tile of scores [keys][kTileQueries].
struct SoftmaxTile {
  const float* scores;
  std::size_t keys;         ///< a multiple of 32, at most kTileKeys
  std::size_t queries;      ///< a multiple of 16, at most kTileQueries
  float factor;             ///< scores times this are base-2 logarithms
  const int32_t* firstKey;  ///< [queries] a query sees the keys from firstKey to endKey - 1
  const int32_t* endKey;
  float* most;        ///< [queries] largest score times factor so far, or a little less; -inf: none
  float* sum;         ///< [queries] sum of 2^(score factor - most)
  float* kept;        ///< [queries] written: the factor of earlier results, mostly 1
  uint32_t* weights;  ///< [keys / 2][kTileQueries] written: 2^(score factor - most) of keys 2i and 2i + 1 in bf16
};

/// The forward of a tile of queries over consecutive keys. Operands a of products are tiles of 16 rows of 32 elements.
struct Bf16Forward {
  std::size_t depth, width;     ///< of q and k, a multiple of 32; of v, a multiple of 16
  std::size_t keys;             ///< a multiple of 32, at least 32
  std::size_t queries;          ///< a multiple of 16, at most kTileQueries
  const uint32_t* q;            ///< [depth / 2][kTileQueries] pairs of elements 2i and 2i + 1
  const uint16_t* k;            ///< [keys / 16][depth / 32] tiles of 16 keys
  const uint16_t* v;            ///< [keys / 32][width / 16] tiles of 32 keys of v^T
  const uint16_t* firstValues;  ///< [width / 16] replaces the first 32 keys of v; null: does not
  const uint16_t*
      lastValues;  ///< [width / 16] replaces the last 32 keys of v unless they are the first; null: does not
  float factor;    ///< scores times this are base-2 logarithms
  void (*transform)(const void* context, float* scores, std::size_t count);  ///< of scores; may be null
  const void* context;
  const int32_t* firstKey;  ///< [queries] a query sees the keys from firstKey to endKey - 1
  const int32_t* endKey;
  float* scores;      ///< [2][16][kTileQueries] scratch
  uint32_t* weights;  ///< [kTileKeys][kTileQueries] scratch
  float* out;         ///< [width][kTileQueries] written: sums of 2^(score factor - most) v
  float* most;        ///< [queries] written: largest score times factor, or a little less; -inf: none
  float* sum;         ///< [queries] written: sum of 2^(score factor - most)
};

/// Weights and gradients of scores of a tile, both transposed: weight = 2^(score factor - lse), and gradient = weight
/// (product - delta), 0 for keys that a query does not see.
struct GradientTile {
  const float* scores;      ///< [keys][kTileQueries]
  const float* products;    ///< [keys][kTileQueries]: of v and dOut
  std::size_t keys;         ///< a multiple of 32, at most kTileKeys
  std::size_t queries;      ///< a multiple of 32, at most kTileQueries
  float factor;             ///< scores times this are base-2 logarithms
  const int32_t* firstKey;  ///< [queries] a query sees the keys from firstKey to endKey - 1
  const int32_t* endKey;
  const float* lse;         ///< [queries] base 2
  const float* delta;       ///< [queries]
  uint16_t* weights;        ///< [keys][kTileQueries] written, in bf16
  uint16_t* gradients;      ///< [keys][kTileQueries] written, in bf16
  uint32_t* gradientPairs;  ///< [keys / 2][kTileQueries] written: gradients of keys 2i and 2i + 1
};

/// The backward of a tile of queries over consecutive keys. Operands a of products are tiles of 16 rows of 32 elements.
struct Bf16Backward {
  std::size_t depth, width;              ///< of q and k, of v; multiples of 32
  std::size_t keys;                      ///< a multiple of 32, at least 32
  std::size_t visibleBegin, visibleEnd;  ///< keys that a query sees; sums of others do not change
  std::size_t queries;                   ///< a multiple of 32, at most kTileQueries
  const uint32_t *q, *dOut;              ///< [depth / 2 or width / 2][kTileQueries] pairs of elements 2i and 2i + 1
  const uint32_t *qPairs, *dOutPairs;    ///< [.. / kTileQueries][queries / 2][kTileQueries] pairs of rows
  const uint16_t *k, *v;                 ///< [keys / 16][depth / 32 or width / 32] tiles of 16 keys
  const uint16_t* kTransposed;           ///< [keys / 32][depth / 16] tiles of 32 keys of k^T
  const uint16_t *firstKeys, *lastKeys;  ///< replace its first and last 32 keys, as in Bf16Forward
  float factor;                          ///< scores times this are base-2 logarithms
  const int32_t *firstKey, *endKey;      ///< [queries] a query sees the keys from firstKey to endKey - 1
  int32_t seenByAllFirst, seenByAllEnd;  ///< keys that all queries see
  const float *lse, *delta;              ///< [queries] lse in base 2
  float* scores;                         ///< [4][16][kTileQueries] scratch
  uint32_t* gradientPairs;               ///< [kTileKeys][kTileQueries] scratch
  float* apart;                          ///< [2 apartColumns][16] scratch
  std::size_t apartColumns;              ///< depth or width, the larger, rounded up to kTileQueries
  float* dq;                             ///< [depth][kTileQueries] written; null: not computed
  float *dk, *dv;                        ///< [.. / kTileQueries][sumRows][kTileQueries] sums; null: not computed
  std::size_t sumRows;
};

struct Bf16Kernels {
  const char* name;
  /// c = a b, or c += a b, accumulated in fp32. a: m rows of k bf16 elements, strideA apart. b [k / 2][kTileQueries]:
  /// pairs of rows 2i (low half) and 2i + 1. c [m][kTileQueries]. m and n are multiples of 16, k of 32; m may be 0.
  /// Subnormal elements count as 0.
  void (*multiply)(std::size_t m, std::size_t n, std::size_t k, const uint16_t* a, std::size_t strideA,
                   const uint32_t* b, bool accumulate, float* c);
  /// Returns false if every `kept` is 1.
  bool (*softmax)(const SoftmaxTile& tile);
  void (*gradient)(const GradientTile& tile);
  /// c [m][kTileQueries]: multiplies column q by kept[q], for the first n columns.
  void (*rescale)(std::size_t m, std::size_t n, const float* kept, float* c);
  /// to[i][j] = from[2i][j] (low half) and from[2i + 1][j], for the b of multiply(). rows is even, columns a multiple
  /// of 16 and at most kTileQueries; a row of `to` has kTileQueries elements.
  void (*pair)(std::size_t rows, std::size_t columns, const uint16_t* from, std::size_t strideFrom, uint32_t* to);
  /// to[j][i] = from[i][j]. rows and columns are multiples of 8.
  void (*transpose16)(std::size_t rows, std::size_t columns, const uint16_t* from, std::size_t strideFrom, uint16_t* to,
                      std::size_t strideTo);
  /// As transpose16; rows and columns are multiples of 4.
  void (*transpose32)(std::size_t rows, std::size_t columns, const uint32_t* from, std::size_t strideFrom, uint32_t* to,
                      std::size_t strideTo);
  /// Null without AMX, where products and softmax do not run at the same time.
  void (*forward)(const Bf16Forward& tile);
  void (*backward)(const Bf16Backward& tile);  ///< null without forward
};

/// The kernels that this processor and its operating system support, the fastest last; may be empty.
std::span<const Bf16Kernels> supportedBf16Kernels();

/// The fastest kernels; null if there are none.
const Bf16Kernels* bestBf16Kernels();

#if defined(__x86_64__)
extern const Bf16Kernels kBf16Avx512;
void multiplyBf16Amx(std::size_t m, std::size_t n, std::size_t k, const uint16_t* a, std::size_t strideA,
                     const uint32_t* b, bool accumulate, float* c);
void forwardBf16Amx(const Bf16Forward& tile);
void backwardBf16Amx(const Bf16Backward& tile);
#endif

}  // namespace seqpar::attn
