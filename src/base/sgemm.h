// Matrix products in fp32, row-major, on the calling thread only. An element of c gets the same bits in every split of
// a larger product.
#pragma once

#include <cstddef>

namespace seqpar {

/// A matrix operand: element (row, column) is data[row * stride + column].
struct Factor {
  const float* data = nullptr;
  size_t stride = 0;
  bool transposed = false;  ///< use the transpose
};

/// Memory that the calling thread reads soon. Its products load it into the caches, a few cache lines between their
/// tiles: a processor has some twenty loads in flight, so prefetches of many lines at once would stall it.
struct Ahead {
  /// `count` rows of `bytes`, `stride` bytes apart.
  struct Rows {
    const void* data;
    size_t stride, bytes, count;
  };
  static constexpr size_t kMost = 8;

  Rows list[kMost] = {};
  size_t used = 0;                    ///< entries of `list`
  size_t entry = 0, row = 0, at = 0;  ///< the next cache line

  void clear();
  /// Appends rows, unless the list is full: prefetches are hints.
  void add(const Rows& rows);
};

/// That of the calling thread.
Ahead& aheadOfThread();

/// c = a b, or c += a b: a (after transposition) is m x k and b is k x n. c overlaps neither a nor b.
void multiply(size_t m, size_t n, size_t k, Factor a, Factor b, bool accumulate, float* c, size_t strideC);

constexpr size_t kPackedColumns = 32;  ///< the columns of packed operands are padded to a multiple

/// A part of a right operand that pack() has stored, for several products.
struct Packed {
  const float* data = nullptr;
  size_t rows = 0;                       ///< of the whole operand
  size_t firstRow = 0, firstColumn = 0;  ///< of the part; firstColumn is a multiple of kPackedColumns
};

/// The elements that pack() stores for k x n.
constexpr size_t packedSize(size_t k, size_t n) {
  return k * ((n + kPackedColumns - 1) / kPackedColumns * kPackedColumns);
}

/// Stores b, k x n, in the order in which multiplyPacked() reads it; `to` is aligned to 64 bytes.
void pack(size_t k, size_t n, Factor b, float* to);

/// multiply() by a packed operand: equal bits.
void multiplyPacked(size_t m, size_t n, size_t k, Factor a, Packed b, bool accumulate, float* c, size_t strideC);

}  // namespace seqpar
