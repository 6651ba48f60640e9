// The loops of sgemm.h, one for each Isa: the inner two loops of GotoBLAS (Goto and van de Geijn, Anatomy of
// High-Performance Matrix Multiplication, 2008, section 4), which suffice for operands that fit into a core's caches.
//
// A panel of b is packed so that its rows are contiguous, and every tile of c is accumulated in registers. For every
// tile size, an element's products are added one after another in the order of the inner dimension, in blocks of
// kPanelDepth, so an element has the same bits in every split of a matrix.
#pragma once

#include <cstddef>

#include "base/sgemm.h"
#include "base/simd.h"

namespace seqpar {

/// multiply(), pack() and multiplyPacked() of sgemm.h. `ahead` may be null.
struct SgemmKernel {
  void (*multiply)(std::size_t m, std::size_t n, std::size_t k, Factor a, Factor b, bool accumulate, float* c,
                   std::size_t strideC, Ahead* ahead);
  void (*pack)(std::size_t k, std::size_t n, Factor b, float* to);
  void (*multiplyPacked)(std::size_t m, std::size_t n, std::size_t k, Factor a, Packed b, bool accumulate, float* c,
                         std::size_t strideC, Ahead* ahead);
};

extern const SgemmKernel kSgemmPortable;
#if defined(__x86_64__)
extern const SgemmKernel kSgemmAvx2;
extern const SgemmKernel kSgemmAvx512;
#endif

/// The kernel for `isa`; the portable one if this build contains none for it.
const SgemmKernel& sgemmKernel(Isa isa);

/// A tile of c that leaves some registers for the operands: `Rows` times `Columns` vectors. `Vector` provides the
/// register type V, set() (broadcasts a scalar) and multiplyAdd() (a b + c, with equal rounding at every call site).
template <class Vector, std::size_t Rows, std::size_t Columns>
struct SgemmTile {
  using V = typename Vector::V;
  static constexpr std::size_t kLanes = sizeof(V) / sizeof(float);
  static constexpr std::size_t kRows = Rows;
  static constexpr std::size_t kWidth = Columns * kLanes;
  static constexpr std::size_t kPanelDepth = 256;

  /// The address of element (i, p) of the left operand: data[i * row + p * step].
  struct Left {
    const float* data;
    std::size_t row;
    std::size_t step;
  };

  // body(i, j) for all elements, unrolled by templates: g++ unrolls loops only after it has decided that arrays of sums
  // stay in memory, and would store and load all of them before and after the loop over the depth.
  template <std::size_t Height, std::size_t Width, std::size_t At = 0, class Body>
  [[gnu::always_inline]] static inline void each(const Body& body) {
    body(At / Width, At % Width);
    if constexpr (At + 1 < Height * Width) each<Height, Width, At + 1>(body);
  }

  typedef V Unaligned __attribute__((aligned(sizeof(float)), may_alias));
  static V load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
  static void store(float* to, V v) { *reinterpret_cast<Unaligned*>(to) = v; }

  /// c = or += a b for Height rows; `b` has `depth` rows of kWidth elements, strideB apart.
  template <std::size_t Height, bool Accumulate>
  static void multiply(std::size_t depth, const Left& left, const float* b, std::size_t strideB, float* c,
                       std::size_t strideC) {
    // The address of a row is one of `kGroups` pointers and up to 4 strides, which instructions can add, or stride3.
    constexpr std::size_t kGroup = 5, kGroups = (Height + kGroup - 1) / kGroup;
    std::size_t stride = left.row * sizeof(float), stride3 = 3 * stride;
    const char* a[kGroups];
    each<kGroups, 1>(
        [&](std::size_t i, std::size_t) { a[i] = reinterpret_cast<const char*>(left.data) + i * kGroup * stride; });
    V sum[Height][Columns], row[Columns];
    each<Height, Columns>(
        [&](std::size_t i, std::size_t j) { sum[i][j] = Accumulate ? load(c + i * strideC + j * kLanes) : V{}; });
    for (std::size_t p = 0; p < depth; ++p, b += strideB) {
      __asm__("" : "+r"(stride), "+r"(stride3));  // opaque copies: g++ would keep an offset per row, and spill them
      each<1, Columns>([&](std::size_t, std::size_t j) { row[j] = load(b + j * kLanes); });
      V factor;
      each<Height, Columns>([&](std::size_t i, std::size_t j) {
        const std::size_t offset = i % kGroup == 3 ? stride3 : i % kGroup * stride;
        if (j == 0) factor = Vector::set(*reinterpret_cast<const float*>(a[i / kGroup] + offset));
        sum[i][j] = Vector::multiplyAdd(factor, row[j], sum[i][j]);
      });
      each<kGroups, 1>([&](std::size_t i, std::size_t) { a[i] += left.step * sizeof(float); });
    }
    __asm__("" : "+r"(c));  // an opaque copy: g++ would keep the addresses of all loads for the stores
    each<Height, Columns>([&](std::size_t i, std::size_t j) { store(c + i * strideC + j * kLanes, sum[i][j]); });
  }

  /// multiply() of `rows` <= Height rows: one instantiation per height, for its register allocation.
  template <std::size_t Height = Rows>
  static void multiplyRows(std::size_t rows, std::size_t depth, const Left& a, const float* b, std::size_t strideB,
                           bool accumulate, float* c, std::size_t strideC) {
    if constexpr (Height > 1) {
      if (rows < Height) return multiplyRows<Height - 1>(rows, depth, a, b, strideB, accumulate, c, strideC);
    }
    if (accumulate) {
      multiply<Height, true>(depth, a, b, strideB, c, strideC);
    } else {
      multiply<Height, false>(depth, a, b, strideB, c, strideC);
    }
  }

  /// multiplyRows() for the first `width` columns only; `b` has kWidth columns.
  static void multiplyPart(std::size_t rows, std::size_t width, std::size_t depth, const Left& a, const float* b,
                           bool accumulate, float* c, std::size_t strideC) {
    float whole[Rows * kWidth] = {};
    for (std::size_t i = 0; accumulate && i < rows; ++i) {
      for (std::size_t j = 0; j < width; ++j) whole[i * kWidth + j] = c[i * strideC + j];
    }
    multiplyRows(rows, depth, a, b, kWidth, accumulate, whole, kWidth);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < width; ++j) c[i * strideC + j] = whole[i * kWidth + j];
    }
  }

  /// panel[p][j] = b[p][j]; zero-fills columns from `width` on.
  static void pack(std::size_t depth, std::size_t width, const float* b, std::size_t strideB, float* panel) {
    for (std::size_t p = 0; p < depth; ++p, panel += kWidth, b += strideB) {
      if (width == kWidth) {
        __builtin_memcpy(panel, b, kWidth * sizeof(float));
        continue;
      }
      for (std::size_t j = 0; j < kWidth; ++j) panel[j] = j < width ? b[j] : 0.0f;
    }
  }

  /// panel[p][j] = b[j][p]; zero-fills columns from `width` on.
  static void packTransposed(std::size_t depth, std::size_t width, const float* b, std::size_t strideB, float* panel) {
    std::size_t j = 0;
    for (; j + 4 <= width; j += 4, b += 4 * strideB) {
      std::size_t p = 0;
      for (; p + 4 <= depth; p += 4) transpose4(b + p, strideB, panel + p * kWidth + j);
      for (; p < depth; ++p) {
        for (std::size_t i = 0; i < 4; ++i) panel[p * kWidth + j + i] = b[i * strideB + p];
      }
    }
    for (; j < kWidth; ++j, b += strideB) {
      for (std::size_t p = 0; p < depth; ++p) panel[p * kWidth + j] = j < width ? b[p] : 0.0f;
    }
  }

  static void transpose4(const float* from, std::size_t stride, float* to) {
    typedef float V4 __attribute__((vector_size(16)));
    V4 row[4];
    for (std::size_t i = 0; i < 4; ++i) __builtin_memcpy(&row[i], from + i * stride, sizeof(V4));
    const V4 low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    const V4 high01 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    const V4 low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    const V4 high23 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    const V4 column[4] = {
        __builtin_shufflevector(low01, low23, 0, 1, 4, 5), __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
        __builtin_shufflevector(high01, high23, 0, 1, 4, 5), __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
    for (std::size_t i = 0; i < 4; ++i) __builtin_memcpy(to + i * kWidth, &column[i], sizeof(V4));
  }

  /// Loads the next cache lines of `ahead`, as many as a tile of `depth` takes time for.
  static void prefetch(Ahead& ahead, std::size_t depth) {
    constexpr std::size_t kLine = 64, kSumsOfLine = 1024;
    std::size_t lines = Rows * kWidth * depth / kSumsOfLine;
    while (lines > 0 && ahead.entry < ahead.used) {
      const Ahead::Rows& rows = ahead.list[ahead.entry];
      const char* const row = static_cast<const char*>(rows.data) + ahead.row * rows.stride;
      for (; lines > 0 && ahead.at < rows.bytes; ahead.at += kLine, --lines) __builtin_prefetch(row + ahead.at, 0, 2);
      if (ahead.at < rows.bytes) return;
      ahead.at = 0;
      if (++ahead.row < rows.count) continue;
      ahead.row = 0;
      ++ahead.entry;
    }
  }

  /// The whole product. `ahead` may be null.
  static void run(std::size_t m, std::size_t n, std::size_t k, Factor a, Factor b, bool accumulate, float* c,
                  std::size_t strideC, Ahead* ahead) {
    alignas(64) float panel[kPanelDepth * kWidth];
    std::size_t first = 0;
    do {  // also once for k = 0, where c may have to be cleared
      const std::size_t depth = k - first < kPanelDepth ? k - first : kPanelDepth;
      const bool add = accumulate || first > 0;
      const Left left = {a.data + first * (a.transposed ? a.stride : 1), a.transposed ? 1 : a.stride,
                         a.transposed ? a.stride : 1};
      for (std::size_t j = 0; j < n; j += kWidth) {
        const std::size_t width = n - j < kWidth ? n - j : kWidth;
        const float* rows = panel;
        std::size_t stride = kWidth;
        if (b.transposed) {
          packTransposed(depth, width, b.data + j * b.stride + first, b.stride, panel);
        } else if (width < kWidth || m > 2 * kRows) {
          pack(depth, width, b.data + first * b.stride + j, b.stride, panel);
        } else {  // packing does not pay for so few rows
          rows = b.data + first * b.stride + j;
          stride = b.stride;
        }
        for (std::size_t i = 0; i < m; i += kRows) {
          const std::size_t height = m - i < kRows ? m - i : kRows;
          const Left part = {left.data + i * left.row, left.row, left.step};
          float* const to = c + i * strideC + j;
          if (ahead != nullptr) prefetch(*ahead, depth);
          if (width == kWidth) {
            multiplyRows(height, depth, part, rows, stride, add, to, strideC);
          } else {
            multiplyPart(height, width, depth, part, panel, add, to, strideC);
          }
        }
      }
      first += depth;
    } while (first < k);
  }

  static void packAll(std::size_t k, std::size_t n, Factor b, float* to) {
    for (std::size_t j = 0; j < n; j += kWidth, to += k * kWidth) {
      const std::size_t width = n - j < kWidth ? n - j : kWidth;
      if (b.transposed) {
        packTransposed(k, width, b.data + j * b.stride, b.stride, to);
      } else {
        pack(k, width, b.data + j, b.stride, to);
      }
    }
  }

  static void runPacked(std::size_t m, std::size_t n, std::size_t k, Factor a, Packed b, bool accumulate, float* c,
                        std::size_t strideC, Ahead* ahead) {
    std::size_t first = 0;
    do {
      const std::size_t depth = k - first < kPanelDepth ? k - first : kPanelDepth;
      const bool add = accumulate || first > 0;
      const Left left = {a.data + first * (a.transposed ? a.stride : 1), a.transposed ? 1 : a.stride,
                         a.transposed ? a.stride : 1};
      for (std::size_t j = 0; j < n; j += kWidth) {
        const std::size_t width = n - j < kWidth ? n - j : kWidth;
        const float* const panel = b.data + (b.firstColumn + j) * b.rows + (b.firstRow + first) * kWidth;
        for (std::size_t i = 0; i < m; i += kRows) {
          const std::size_t height = m - i < kRows ? m - i : kRows;
          const Left part = {left.data + i * left.row, left.row, left.step};
          if (ahead != nullptr) prefetch(*ahead, depth);
          if (width == kWidth) {
            multiplyRows(height, depth, part, panel, kWidth, add, c + i * strideC + j, strideC);
          } else {
            multiplyPart(height, width, depth, part, panel, add, c + i * strideC + j, strideC);
          }
        }
      }
      first += depth;
    } while (first < k);
  }
};

/// multiply() with narrow panels for narrow products.
template <class Vector, std::size_t Rows>
void sgemm(std::size_t m, std::size_t n, std::size_t k, Factor a, Factor b, bool accumulate, float* c,
           std::size_t strideC, Ahead* ahead) {
  using Narrow = SgemmTile<Vector, Rows, 1>;
  using Wide = SgemmTile<Vector, Rows, 2>;
  if (n <= Narrow::kLanes) {
    Narrow::run(m, n, k, a, b, accumulate, c, strideC, ahead);
  } else {
    Wide::run(m, n, k, a, b, accumulate, c, strideC, ahead);
  }
}

template <class Vector, std::size_t Rows>
constexpr SgemmKernel makeSgemmKernel() {
  using Wide = SgemmTile<Vector, Rows, 2>;
  static_assert(kPackedColumns % Wide::kWidth == 0);
  return {sgemm<Vector, Rows>, Wide::packAll, Wide::runPacked};
}

}  // namespace seqpar
