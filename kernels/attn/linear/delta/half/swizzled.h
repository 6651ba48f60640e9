// Tiles of 16-bit elements in shared memory without padding, and products with operands in registers.
#pragma once

#include <type_traits>

#include "kernels/arch/async_copy.h"
#include "kernels/arch/mma.h"
#include "kernels/attn/linear/delta/half/memory.h"
#include "kernels/attn/linear/delta/product.h"

namespace seqpar::attn::delta::half {

/// ptx::thread(), read again: addresses that depend on it do not stay in registers from one phase to the next.
SEQPAR_DEVICE int threadAgain() {
  const int thread = ptx::opaqueThread();
  if (thread < 0 || thread >= 1024) __builtin_unreachable();
  return thread;
}

/// Rows of kUnits 16-byte units in shared memory, `offset` bytes behind its start; unit u of row r is at u ^ (r % 8),
/// so that ldmatrix has no bank conflicts.
template <int kUnits>
struct Swizzled {
  static constexpr int kWidth = kUnits, kRowBytes = 16 * kUnits;
  int offset;
  SEQPAR_DEVICE uint16_t* unit(int row, int unit) const {
    return reinterpret_cast<uint16_t*>(ptx::sharedMemory() + offset + row * kRowBytes + (unit ^ row % 8) * 16);
  }
  SEQPAR_DEVICE uint16_t* at(int row, int column) const { return unit(row, column / 8) + column % 8; }
  SEQPAR_DEVICE uint32_t& pair(int row, int column) const { return *reinterpret_cast<uint32_t*>(at(row, column)); }
  /// Of row `row` + r, r < 8, and the unit at byte `byte` ^ 16 u of the row.
  SEQPAR_DEVICE uint32_t address(int row, int r, int byte, int u) const {
    return ptx::sharedAddress(ptx::sharedMemory()) +
           static_cast<uint32_t>(offset + (row + r) * kRowBytes + (byte ^ (u ^ r) * 16));
  }
};
using KeyRows = Swizzled<kKeys / 8>;     ///< [rows][kKeys]
using SquareRows = Swizzled<kRows / 8>;  ///< [rows][64]

/// Rows of 128 elements in two panels of 64 columns, each like SquareRows.
template <int kTileRows>
struct KeyPanels {
  static constexpr int kWidth = kKeys / 8, kRowBytes = 128, kPanelBytes = kTileRows * kRowBytes;
  int offset;
  SEQPAR_DEVICE uint16_t* unit(int row, int unit) const {
    return reinterpret_cast<uint16_t*>(ptx::sharedMemory() + offset + unit / 8 * kPanelBytes + row * kRowBytes +
                                       (unit % 8 ^ row % 8) * 16);
  }
  SEQPAR_DEVICE uint16_t* at(int row, int column) const { return unit(row, column / 8) + column % 8; }
  SEQPAR_DEVICE uint32_t& pair(int row, int column) const { return *reinterpret_cast<uint32_t*>(at(row, column)); }
  /// As Swizzled::address().
  SEQPAR_DEVICE uint32_t address(int row, int r, int byte, int u) const {
    const int at = byte ^ u * 16;
    return ptx::sharedAddress(ptx::sharedMemory()) +
           static_cast<uint32_t>(offset + at / kRowBytes * kPanelBytes + (row + r) * kRowBytes +
                                 (at % kRowBytes ^ r * 16));
  }
};

/// The left operand of a product for 16 rows and 16 terms. kTermsInRows: rows of memory are rows of the product; else
/// they are terms.
template <bool kTermsInRows, class Tile>
SEQPAR_DEVICE void loadLeft(uint32_t (&a)[4], const Tile& from, int row, int term, int lane = threadAgain() % 32) {
  const int inEight = lane % 8, odd = lane / 8 % 2, upper = lane / 16;
  if constexpr (kTermsInRows) {
    ptx::ldmatrixX4(a, from.address(row + odd * 8, inEight, 2 * term, upper));
  } else {
    ptx::ldmatrixX4Trans(a, from.address(term + upper * 8, inEight, 2 * row, odd));
  }
}

/// c += a b for 8 `last` - 8 `first` columns from `column` + 8 `first` on, 16 terms. kTermsInRows: rows of memory are
/// columns of the product.
template <class T, bool kTermsInRows, int kTiles, class Tile>
SEQPAR_DEVICE void accumulate(float (&c)[kTiles][4], const uint32_t (&a)[4], const Tile& b, int column, int term,
                              int first = 0, int last = kTiles, int lane = threadAgain() % 32) {
  const int inEight = lane % 8, odd = lane / 8 % 2, upper = lane / 16;
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; n += 2) {
    if (n < first || n >= last) continue;
    uint32_t y[4];
    if constexpr (kTermsInRows) {
      ptx::ldmatrixX4(y, b.address(column + 8 * n + upper * 8, inEight, 2 * term, odd));
    } else {
      ptx::ldmatrixX4Trans(y, b.address(term + odd * 8, inEight, 2 * (column + 8 * n), upper));
    }
    ptx::mmaM16N8K16<T>(c[n], a, y[0], y[1]);
    ptx::mmaM16N8K16<T>(c[n + 1], a, y[2], y[3]);
  }
}

/// c += a y and d += x y, with one load of y.
template <class T, bool kTermsInRows, int kTiles, int kUnits>
SEQPAR_DEVICE void accumulateBoth(float (&c)[kTiles][4], const uint32_t (&a)[4], float (&d)[kTiles][4],
                                  const uint32_t (&x)[4], const Swizzled<kUnits>& b, int column, int term,
                                  int lane = threadAgain() % 32) {
  const int inEight = lane % 8, odd = lane / 8 % 2, upper = lane / 16;
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t y[4];
    if constexpr (kTermsInRows) {
      ptx::ldmatrixX4(y, b.address(column + 8 * n + upper * 8, inEight, 2 * term, odd));
    } else {
      ptx::ldmatrixX4Trans(y, b.address(term + odd * 8, inEight, 2 * (column + 8 * n), upper));
    }
    ptx::mmaM16N8K16<T>(c[n], a, y[0], y[1]);
    ptx::mmaM16N8K16<T>(d[n], x, y[0], y[1]);
    ptx::mmaM16N8K16<T>(c[n + 1], a, y[2], y[3]);
    ptx::mmaM16N8K16<T>(d[n + 1], x, y[2], y[3]);
  }
}

/// ptx::pack() of values in the range of T, in fewer instructions.
template <class T>
SEQPAR_DEVICE uint32_t packInRange(float low, float high) {
  return ptx::kIsBf16<T> ? floatsToBfloats(low, high) : floatsToHalves(low, high);
}
/// Rounds a pair of accumulator tiles, 16 columns, to the left operand of a product with 16 terms.
template <class T>
SEQPAR_DEVICE void roundTiles(uint32_t (&a)[4], const float (&c)[4], const float (&next)[4]) {
  a[0] = ptx::pack<T>(c[0], c[1]);
  a[1] = ptx::pack<T>(c[2], c[3]);
  a[2] = ptx::pack<T>(next[0], next[1]);
  a[3] = ptx::pack<T>(next[2], next[3]);
}
/// Stores such an operand as rows row ... row + 15, columns column ... column + 15.
template <class Tile>
SEQPAR_DEVICE void storeLeft(const Tile& to, int row, int column, const uint32_t (&a)[4],
                             int lane = threadAgain() % 32) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const int inEight = lane % 8, odd = lane / 8 % 2, upper = lane / 16;
  ptx::stmatrixX4(to.address(row + odd * 8, inEight, 2 * column, upper), a);
#else
  const ptx::AccumulatorLayout layout{lane};
  const int g = layout.row(row), p = layout.column(column);
  to.pair(g, p) = a[0];
  to.pair(g + 8, p) = a[1];
  to.pair(g, p + 8) = a[2];
  to.pair(g + 8, p + 8) = a[3];
#endif
}

/// Stores a pair of neighbors; `to` is aligned to 4 bytes.
template <class T>
SEQPAR_DEVICE void storeRounded(uint16_t* to, float low, float high) {
  *reinterpret_cast<uint32_t*>(to) = ptx::pack<T>(low, high);
}

/// Moves the first kBy elements, numbers or arrays of them, to the end, so that one loop has the code of kBy elements
/// for all: kernels that run once are bound by fetching instructions.
template <int kBy, class Element, int kCount>
SEQPAR_DEVICE void rotate(Element (&x)[kCount]) {
  Element first[kBy];
  const auto copy = [](Element& to, const Element& from) {
    if constexpr (std::is_array_v<Element>) {
      SEQPAR_UNROLL
      for (size_t e = 0; e < std::extent_v<Element>; ++e) to[e] = from[e];
    } else {
      to = from;
    }
  };
  SEQPAR_UNROLL
  for (int i = 0; i < kBy; ++i) copy(first[i], x[i]);
  SEQPAR_UNROLL
  for (int i = 0; i + kBy < kCount; ++i) copy(x[i], x[i + kBy]);
  SEQPAR_UNROLL
  for (int i = 0; i < kBy; ++i) copy(x[kCount - kBy + i], first[i]);
}

/// Calls each(row, column, c[n][e], c[n][e + 1]) for the pairs of a warp's tiles, e = 0 and 2.
template <int kTiles, class Each>
SEQPAR_DEVICE void eachPair(float (&c)[kTiles][4], int row, int column, const Each& each) {
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  const int g = layout.row(row), p = layout.column(column);
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    each(g, p + 8 * n, c[n][0], c[n][1]);
    each(g + 8, p + 8 * n, c[n][2], c[n][3]);
  }
}

/// Whether no element is infinite or NaN.
template <int kTiles>
SEQPAR_DEVICE bool allFinite(const float (&c)[kTiles][4]) {
  float zeros[4] = {};
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) zeros[e] += 0 * c[n][e];
  }
  return (zeros[0] + zeros[1]) + (zeros[2] + zeros[3]) == 0;
}
/// Whether no 16-bit element of operands is infinite or NaN.
template <class T, int kCount>
SEQPAR_DEVICE bool allFinite(const uint32_t (&a)[kCount][4]) {
  uint32_t sums[4] = {};
  SEQPAR_UNROLL
  for (int n = 0; n < kCount; ++n) {
    SEQPAR_UNROLL
    for (int j = 0; j < 4; ++j) ptx::addZeros<T>(sums[j], a[n][j]);
  }
  return ((sums[0] | sums[1] | sums[2] | sums[3]) & 0x7fff7fffU) == 0;
}
/// Replaces elements that are not finite by element(row, column).
template <int kTiles, class Element>
SEQPAR_DEVICE void recompute(float (&c)[kTiles][4], int row, int column, const Element& element) {
  const int lane = threadAgain() % 32, g = row + lane / 4, p = column + lane % 4 * 2;
  SEQPAR_ROLLED
  for (int i = 0; i < 4 * kTiles; ++i) {  // few instructions: kernels that run once are bound by fetching them
    const float value = element(g + i / 2 % 2 * 8, p + i / 4 * 8 + i % 2);
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (4 * n + e == i && !(c[n][e] - c[n][e] == 0)) c[n][e] = value;
      }
    }
  }
}

/// The sum over terms first ... last - 1 of a[row][term] b[term][column], in which a factor of 0 in `a` forgets. Terms
/// are in rows of memory, or each row is one.
template <class T, bool kLeft, bool kRight, class A, class B>
SEQPAR_DEVICE_NOINLINE float sumForgetting(const A a, int row, const B b, int column, int first, int last) {
  float sum = 0;
  for (int k = first; k < last; ++k) {
    sum += forgetting(ptx::lowOf<T>(kLeft ? *a.at(row, k) : *a.at(k, row)),
                      ptx::lowOf<T>(kRight ? *b.at(column, k) : *b.at(k, column)));
  }
  return sum;
}

/// Starts copies of kTileRows dense rows as wide as the tile's by threads `thread` of kThreads. The caller commits.
template <int kTileRows, int kThreads, class Tile>
SEQPAR_DEVICE void startTile(const Tile& to, const uint16_t* from, int thread) {
  constexpr int kUnits = Tile::kWidth, kStep = kThreads / kUnits;  // rows
  static_assert(kThreads % (8 * kUnits) == 0);
  const uint32_t at = to.address(0, thread / kUnits % 8, 0, thread % kUnits) +
                      static_cast<uint32_t>(thread / kUnits / 8 * 8 * to.kRowBytes);
  from += thread * 8;
  SEQPAR_UNROLL
  for (int i = 0; i < kTileRows; i += kStep) {
    if (kTileRows % kStep != 0 && i + thread / kUnits >= kTileRows) break;
    ptx::cpAsync16(at + static_cast<uint32_t>(i * to.kRowBytes), from + i * 8 * kUnits, true);
  }
}
/// Starts copies of a block of kColumns columns of a record's state. The caller commits.
template <int kThreads>
SEQPAR_DEVICE void startStates(const KeyRows& to, const uint16_t* from, int thread) {
  constexpr int kUnits = KeyRows::kWidth, kStep = kThreads / kUnits;  // columns
  static_assert(kThreads % (8 * kUnits) == 0);
  const uint32_t at = ptx::sharedAddress(ptx::sharedMemory()) + static_cast<uint32_t>(to.offset + 16 * thread);
  from += thread % kUnits / 8 * kRows * 64 + thread / kUnits * 64 + thread % 8 * 8;
  SEQPAR_UNROLL
  for (int i = 0; i < kColumns; i += kStep) {
    ptx::cpAsync16(at + static_cast<uint32_t>(i * KeyRows::kRowBytes), from + i * 64, true);
  }
}
/// Stores kTileColumns columns from `first` on of a record's state.
template <int kTileColumns, int kThreads, class Tile>
SEQPAR_DEVICE void storeStates(uint16_t* to, int first, const Tile& from, int thread) {
  constexpr int kUnits = kKeys / 8;
  SEQPAR_UNROLL
  for (int i = 0; i < kTileColumns * kUnits; i += kThreads) {
    const int column = (i + thread) / kUnits, unit = thread % kUnits;
    uint32_t words[4];
    ptx::load(words, from.unit(column, unit));
    ptx::storeGlobal(to + stateIndex(first + column, unit * 8), words);
  }
}
/// Starts copies of an image to shared memory, `to` behind its start. The caller commits.
template <int kBytes, int kThreads>
SEQPAR_DEVICE void startImage(int to, const uint16_t* from, int thread) {
  const uint32_t at = ptx::sharedAddress(ptx::sharedMemory()) + static_cast<uint32_t>(to + 16 * thread);
  SEQPAR_UNROLL
  for (int i = 0; i < kBytes; i += 16 * kThreads) {
    if (kBytes % (16 * kThreads) != 0 && i + 16 * thread >= kBytes) break;
    ptx::cpAsync16(at + static_cast<uint32_t>(i), from + 8 * thread + i / 2, true);
  }
}
/// Copies an image from shared memory, `from` behind its start.
template <int kBytes, int kThreads>
SEQPAR_DEVICE void storeImage(uint16_t* to, int from, int thread) {
  to += 8 * thread;
  from += 16 * thread;
  SEQPAR_UNROLL
  for (int i = 0; i < kBytes; i += 16 * kThreads) {
    if (kBytes % (16 * kThreads) != 0 && i + 16 * thread >= kBytes) break;
    uint32_t words[4];
    ptx::load(words, reinterpret_cast<const uint16_t*>(ptx::sharedMemory() + from + i));
    ptx::storeGlobal(to + i / 2, words);
  }
}
/// Clears the blocks above the diagonal of an image of a square.
SEQPAR_DEVICE void clearUpper(uint16_t* image, int thread, int threads) {
  constexpr int kUnits = kRows / 8;
  const uint32_t zeros[4] = {};
  for (int i = thread; i < kRows * kUnits; i += threads) {
    const int t = i / kUnits, column = i % kUnits * 8;
    if (column / kBlock > t / kBlock) ptx::storeGlobal(image + imageIndex(t, column), zeros);
  }
}

/// A chunk's rows of a tensor of 16-bit elements, from a column on.
struct TensorRows {
  uint16_t* data;
  int64_t stride;
  int rows, columns;  ///< those that exist
  template <class Pointer>
  SEQPAR_DEVICE TensorRows(const Strided<Pointer>& tensor, int64_t batch, const Chunk& chunk, int head, int first,
                           int all)
      : data(static_cast<uint16_t*>(const_cast<void*>(static_cast<const void*>(tensor.data))) +
             rowOf(tensor, batch, chunk.first, head) + first),
        stride(tensor.token),
        rows(chunk.rows),
        columns(all - first) {}
  SEQPAR_DEVICE TensorRows(uint16_t* data, int64_t stride, int rows, int columns)
      : data(data), stride(stride), rows(rows), columns(columns) {}
  /// Whether those of the first `width` columns that exist are units of 16 bytes.
  SEQPAR_DEVICE bool hasUnits(int width) const {
    return (columns >= width || columns % 8 == 0) &&
           (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride * 2)) % 16 == 0;
  }
};
/// Elements `column` and `column` + 1 of a row; 0 where they do not exist. In few instructions per call.
template <class = void>
SEQPAR_DEVICE_NOINLINE uint32_t anyPairOf(const TensorRows from, int row, int column) {
  if (row >= from.rows || column >= from.columns) return 0;
  const uint16_t* const at = from.data + row * from.stride + column;
  return at[0] | (column + 1 < from.columns ? uint32_t{at[1]} << 16 : 0U);
}
template <class Tile>
SEQPAR_DEVICE_NOINLINE void loadElements(const Tile to, const TensorRows from, int width, int thread, int threads) {
  SEQPAR_ROLLED
  for (int i = thread; i < kRows * width; i += threads) {
    const int t = i / width, c = i % width;
    *to.at(t, c) = t < from.rows && c < from.columns ? from.data[t * from.stride + c] : uint16_t{0};
  }
}
template <int kUnits>
SEQPAR_DEVICE_NOINLINE void storeElements(const TensorRows to, int first, int rows, int width,
                                          const Swizzled<kUnits> from, int thread, int threads) {
  SEQPAR_ROLLED
  for (int i = thread; i < rows * width; i += threads) {
    const int r = i / width, c = i % width;
    if (first + r < to.rows && c < to.columns) to.data[(first + r) * to.stride + c] = *from.at(r, c);
  }
}

/// Prefetches a chunk's rows to L2, for later loads: a line of 128 bytes per thread.
template <int kWidth>
SEQPAR_DEVICE void prefetchTensor(const TensorRows& from, int thread) {
  constexpr int kOfRow = kWidth / 64;
  const int r = thread / kOfRow, c = thread % kOfRow * 64;
  if (r < from.rows && c < from.columns) ptx::prefetch(from.data + r * from.stride + c);
}

/// Starts copies of a chunk's rows, kWidth columns. Elements that do not exist are 0. The caller commits.
template <int kWidth, int kThreads, class Tile>
SEQPAR_DEVICE void startTensor(const Tile& to, const TensorRows& from, int thread) {
  constexpr int kOfRow = kWidth / 8, kStep = kThreads / kOfRow;
  static_assert(kThreads % (8 * kOfRow) == 0);
  if (!from.hasUnits(kWidth)) return loadElements(to, from, kWidth, thread, kThreads);
  const int row = thread / kOfRow;
  const uint32_t at = to.address(row / 8 * 8, row % 8, 0, thread % kOfRow);
  const bool inside = thread % kOfRow * 8 < from.columns;
  const uint16_t* data = from.data + row * from.stride + thread % kOfRow * 8;
  SEQPAR_UNROLL
  for (int i = 0; i < kRows; i += kStep, data += kStep * from.stride) {
    ptx::cpAsync16(at + static_cast<uint32_t>(i * to.kRowBytes), data, inside && row + i < from.rows);
  }
}
/// Stores kTileRows rows as those from `first` on, except elements that do not exist.
template <int kWidth, int kTileRows, int kThreads, int kUnits>
SEQPAR_DEVICE void storeTensor(const TensorRows& to, int first, const Swizzled<kUnits>& from, int thread) {
  constexpr int kOfRow = kWidth / 8, kStep = kThreads / kOfRow;
  if (!to.hasUnits(kWidth)) return storeElements(to, first, kTileRows, kWidth, from, thread, kThreads);
  const int row = thread / kOfRow;
  const bool inside = thread % kOfRow * 8 < to.columns;
  uint16_t* data = to.data + (first + row) * to.stride + thread % kOfRow * 8;
  SEQPAR_UNROLL
  for (int i = 0; i < kTileRows; i += kStep, data += kStep * to.stride) {
    uint32_t words[4];
    ptx::load(words, from.unit(row + i, thread % kOfRow));
    if (inside && first + row + i < to.rows) ptx::storeGlobal(data, words);
  }
}

}  // namespace seqpar::attn::delta::half
