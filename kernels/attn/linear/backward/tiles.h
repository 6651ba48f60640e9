// Tiles in shared memory, and their fragments for a warp's products.
#pragma once

#include "kernels/arch/async_copy.h"
#include "kernels/arch/mma.h"
#include "kernels/attn/linear/backward/task.h"
#include "kernels/attn/linear/decay.h"

namespace seqpar::attn::backward {

constexpr int kTileRows = 16;
constexpr int kTiles = kChunk / kTileRows;
constexpr int kTokenStride =
    kChunk + 8;  ///< of matrices of tokens x tokens; rows padded by 16 bytes avoid bank conflicts

constexpr float kLn2 = 0.6931471805599453f;

/// Division of a chunk's 64 x D among the warps: rows of 16 tokens, and parts of the columns.
template <int D>
struct Columns {
  static constexpr int kWarps = warpsOf(D), kThreads = kWarps * 32, kParts = kWarps / kTiles;
  static constexpr int kEach = D / kParts;
  static constexpr int kTiles8 = kEach / 8;  ///< accumulator tiles
};

/// Division of the state of KD x VD among the warps: rows of 16, and halves of the columns.
template <int KD, int VD>
struct Shares {
  static_assert(KD == VD);
  static constexpr int kRowTiles = KD / 16;
  static constexpr int kSplits = warpsOf(KD) / kRowTiles;
  static constexpr int kStateColumns = VD / kSplits;
  static constexpr int kStateTiles = kStateColumns / 8;
  static constexpr int kKeyStride = KD + 8, kValueStride = VD + 8;
};

template <int D>
struct Lane {
  int thread = ptx::thread();
  int warpIndex = thread / 32, lane = thread % 32;
  int g = lane / 4, c = lane % 4;  ///< row, and pair of columns, of accumulator tiles
  int tile = warpIndex / Columns<D>::kParts, part = warpIndex % Columns<D>::kParts;  ///< in a chunk's 64 x D
  int firstColumn = part * Columns<D>::kEach;

  SEQPAR_DEVICE ptx::AccumulatorLayout layout() const { return {lane}; }
  SEQPAR_DEVICE int token(int r) const { return tile * kTileRows + g + r * 8; }  ///< r = 0, 1
  SEQPAR_DEVICE int column(int n) const { return firstColumn + n * 8 + c * 2; }  ///< of tile n; and + 1
};

/// 2^x for x that is at most 0 except for rounding.
SEQPAR_DEVICE float decayOf(float x) {
  return ptx::ex2ApproxOfDecay(x < 0 ? x : 0.f);
}
/// The factor of `maps` maps; their natural logarithms are at `logs`, with stride `stride`.
SEQPAR_DEVICE float decayOfMaps(const float* logs, int maps, int stride) {
  float sum = 0;
  for (int i = 0; i < maps; ++i) sum += logs[int64_t{i} * stride];
  return decayOf(sum * kLog2e);
}
/// A factor of 0 discards x, even NaN and infinity.
SEQPAR_DEVICE float times(float factor, float x) {
  return factor == 0 ? 0.f : factor * x;
}

using Fragment = uint32_t[4];

/// The rounding remainders of two values relative to `kept`, rounded. With them a product is about as exact as in fp32.
template <class T>
SEQPAR_DEVICE uint32_t restOf(float low, float high, uint32_t kept) {
  return ptx::pack<T>(low - ptx::lowOf<T>(kept), high - ptx::highOf<T>(kept));
}

/// The left operand at (m, k) of a tile stored by rows m.
template <class T>
SEQPAR_DEVICE void leftOf(Fragment& to, const T* tile, int stride, int m, int k, int lane) {
  const ptx::MatrixRows own{lane};
  ptx::ldmatrixX4(to, tile + own.row(m) * stride + k + own.half() * 8);
}
/// The left operand from a tile stored by rows k.
template <class T>
SEQPAR_DEVICE void leftOfTransposed(Fragment& to, const T* tile, int stride, int m, int k, int lane) {
  const ptx::MatrixRowsAcross own{lane};
  ptx::ldmatrixX4Trans(to, tile + own.row(k) * stride + m + own.half() * 8);
}
/// The right operands of columns n and n + 8, terms k, of a tile stored by rows n.
template <class T>
SEQPAR_DEVICE void rightOf(Fragment& to, const T* tile, int stride, int n, int k, int lane) {
  const ptx::MatrixRowsAcross own{lane};
  ptx::ldmatrixX4(to, tile + own.row(n) * stride + k + own.half() * 8);
}
/// The right operands from a tile stored by rows k.
template <class T>
SEQPAR_DEVICE void rightOfTransposed(Fragment& to, const T* tile, int stride, int n, int k, int lane) {
  // The rows of MatrixRows, in another order of additions.
  ptx::ldmatrixX4Trans(to, tile + (k + lane % 8 + lane / 8 % 2 * 8) * stride + n + lane / 16 * 8);
}
template <class T>
SEQPAR_DEVICE void multiplyPair(float (&low)[4], float (&high)[4], const Fragment& left, const Fragment& right) {
  ptx::mmaM16N8K16<T>(low, left, right[0], right[1]);
  ptx::mmaM16N8K16<T>(high, left, right[2], right[3]);
}

template <int N>
SEQPAR_DEVICE void clear(float (&tiles)[N][4]) {
  SEQPAR_UNROLL
  for (int n = 0; n < N; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) tiles[n][e] = 0;
  }
}

constexpr int kItemBytes = 256;  ///< at the start of shared memory

/// The item is in shared memory, because it would occupy registers.
template <class T>
SEQPAR_DEVICE const Item<T>& itemInMemory(const Task& task, int64_t index, int thread) {
  static_assert(sizeof(Item<T>) <= kItemBytes);
  auto* item = reinterpret_cast<Item<T>*>(ptx::sharedMemory());
  ptx::syncthreads();  // the previous item is done
  if (thread == 0) *item = Item<T>(task, index);
  ptx::syncthreads();
  return *item;
}

/// Loads 64 x D elements; invalid rows and columns become 0.
template <int D, class T>
SEQPAR_DEVICE void fetchTile(T* to, const T* from, int64_t stride, int rows, int columns, int thread) {
  SEQPAR_UNROLL
  for (int i = 0; i < kChunk * D / 8 / Columns<D>::kThreads; ++i) {
    const int unit = thread + i * Columns<D>::kThreads, row = unit / (D / 8), column = unit % (D / 8) * 8;
    const bool valid = row < rows && column < columns;
    ptx::cpAsync16(to + row * (D + 8) + column, valid ? from + row * stride + column : from, valid);
  }
}

/// Prefetches a tile to the L2 cache.
template <int D, class T>
SEQPAR_DEVICE void prefetchTile(const T* from, int64_t stride, int rows, int thread) {
  constexpr int kLine = 128 / sizeof(T), kLines = D / kLine;
  if (thread < kChunk * kLines) {
    const int row = thread / kLines;
    if (row < rows) ptx::prefetch(from + row * stride + thread % kLines * kLine);
  }
}

}  // namespace seqpar::attn::backward
