// Tiles in the layout of kernels/arch/warpgroup.h, and their division among two or four warpgroups: each has an equal
// part of the 128 columns, and its warps 16 of the 64 tokens each.
#pragma once

#include "kernels/arch/warpgroup.h"
#include "kernels/attn/linear/backward/gates.h"

namespace seqpar::attn::backward::sm90 {

using warpgroup::Operand;
using warpgroup::Terms;

constexpr int kPanel = warpgroup::kPanel;
constexpr int kTile = kChunk * kBlock, kTilePanel = kTile / 2;        ///< of 64 tokens, in elements
constexpr int kMatrix = kBlock * kBlock, kMatrixPanel = kMatrix / 2;  ///< of a state
constexpr int kTilePanelBytes = kTilePanel * 2, kMatrixPanelBytes = kMatrixPanel * 2;

/// A thread's position among kGroups warpgroups, 2 or 4, each with an equal number of a tile's columns.
template <int kGroups>
struct Place {
  static constexpr int kThreads = kGroups * warpgroup::kThreads, kOwn = kBlock / kGroups;
  static constexpr int kTiles8 = kOwn / 8;  ///< accumulator tiles of 64 x kOwn
  using Part = float[kTiles8][4];           ///< a warpgroup's columns of 64 x 128, in accumulators

  int thread, group, inGroup, warpIndex, lane;
  int g, c;         ///< row, and pair of columns, of accumulator tiles
  int row;          ///< this thread has rows row and row + 8
  int firstColumn;  ///< of the warpgroup

  SEQPAR_DEVICE Place()
      : Place(ptx::thread(), ptx::uniform(ptx::thread() / warpgroup::kThreads), ptx::uniform(ptx::thread() / 32 % 4)) {}
  /// Masks tell the compiler that the values are not negative, which simplifies divisions.
  SEQPAR_DEVICE Place(int theThread, int theGroup, int theWarp)
      : thread(theThread & (kThreads - 1)),
        group(theGroup & (kGroups - 1)),
        inGroup(thread % warpgroup::kThreads),
        warpIndex(theWarp & 3),
        lane(thread % 32),
        g(lane / 4),
        c(lane % 4),
        row(warpIndex * 16 + g),
        firstColumn(group * kOwn) {}
  /// Opaque copy: stops the compiler from hoisting address arithmetic out of the loop (saves registers).
  SEQPAR_DEVICE Place opaque() const { return {ptx::opaqueThread(), group, warpIndex}; }
  /// A barrier of the threads that hold the state's rows for this warpgroup's key columns.
  SEQPAR_DEVICE void syncState() const {
    if constexpr (kOwn == kPanel) {
      warpgroup::sync(group);
    } else {
      ptx::syncthreads();
    }
  }

  SEQPAR_DEVICE int column(int n) const { return firstColumn + n * 8 + c * 2; }

  /// The lane's row, and unit of 8 columns, for ldmatrix and stmatrix of 16 of the warp's rows.
  SEQPAR_DEVICE ptx::MatrixRows matrixRows() const { return {lane}; }

  /// The warpgroup's columns in a tile: their panel, and the offset in it.
  SEQPAR_DEVICE int panel() const { return firstColumn / kPanel; }
  SEQPAR_DEVICE int inPanel() const { return firstColumn % kPanel; }
  template <class T>
  SEQPAR_DEVICE const T* columnsOf(const T* tile, int panelNumbers) const {
    return tile + panel() * panelNumbers + inPanel();
  }
};

/// Index of elements 8 n + 2 c and + 1 of `row` in a panel.
template <class P>
SEQPAR_DEVICE int pairIndex(int row, int n, const P& me) {
  return row * kPanel + (n ^ me.g) * 8 + me.c * 2;
}
template <class T, class P>
SEQPAR_DEVICE uint32_t* pairOf(T* panel, int row, int n, const P& me) {
  return reinterpret_cast<uint32_t*>(panel + pairIndex(row, n, me));
}
template <class T, class P>
SEQPAR_DEVICE const uint32_t* pairOf(const T* panel, int row, int n, const P& me) {
  return reinterpret_cast<const uint32_t*>(panel + pairIndex(row, n, me));
}
/// This thread's row r of accumulator tile n, in the warpgroup's columns of a tile.
template <class T, class P>
SEQPAR_DEVICE auto* pairAt(T* tile, int n, int r, const P& me) {
  return pairOf(tile + me.panel() * kTilePanel, me.row + r * 8, me.inPanel() / 8 + n, me);
}

/// The lane's row for ptx::ldmatrixX4() and storeMatrices() of accumulator tiles n and n + 1, in the warpgroup's
/// columns of a tile. The words are tile n in this thread's two rows, then tile n + 1. n is even.
template <class T, class P>
SEQPAR_DEVICE T* matrixRow(T* tile, int n, const P& me) {
  const ptx::MatrixRows own = me.matrixRows();
  const int row = own.row(me.warpIndex * 16), unit = (me.inPanel() / 8 + own.half()) ^ row % 8;
  return tile + me.panel() * kTilePanel + row * kPanel + (unit ^ n) * 8;
}
template <class T, class P>
SEQPAR_DEVICE void loadTiles(uint32_t (&words)[4], const T* tile, int n, const P& me) {
  ptx::ldmatrixX4(words, matrixRow(tile, n, me));
}
template <class T, class P>
SEQPAR_DEVICE void storeTiles(T* tile, int n, const uint32_t (&words)[4], const P& me) {
  ptx::stmatrixX4(matrixRow(tile, n, me), words);
}
/// Packs the accumulators of tiles n and n + 1 in the order of these words.
template <class T, int N>
SEQPAR_DEVICE void packTiles(uint32_t (&words)[4], const float (&c)[N][4], int n) {
  SEQPAR_UNROLL
  for (int i = 0; i < 4; ++i) words[i] = ptx::pack<T>(c[n + i / 2][i % 2 * 2], c[n + i / 2][i % 2 * 2 + 1]);
}

/// Address of 16-byte unit `unit` of a row of 128 elements, in panels of kRows rows.
template <int kRows, class T>
SEQPAR_DEVICE T* unitOf(T* tile, int row, int unit) {
  return tile + unit / 8 * kRows * kPanel + row * kPanel + ((unit % 8) ^ (row % 8)) * 8;
}

/// Loads kRows x 128 elements; invalid rows and columns become 0.
template <int kRows, int kThreads, class T>
SEQPAR_DEVICE void fetchRows(T* to, const T* from, int64_t stride, int rows, int columns, int thread) {
  const int firstRow = thread / 16, unit = thread % 16;
  from += firstRow * stride + unit * 8;
  to = unitOf<kRows>(to, firstRow, unit);
  SEQPAR_UNROLL
  for (int i = 0; i < kRows; i += kThreads / 16) {
    ptx::cpAsync16(to + i * kPanel, from, firstRow + i < rows && unit * 8 < columns);
    from += kThreads / 16 * stride;
  }
}

/// Loads kChunk x 64 elements of each of two heads, which are the tile's panels. A warpgroup loads one head; `from` is
/// its first element.
template <class T>
SEQPAR_DEVICE void fetchPanel(T* to, const T* from, int64_t stride, int rows, int columns, const Place<2>& me) {
  constexpr int kRows = warpgroup::kThreads / 8;
  const int firstRow = me.inGroup / 8, unit = me.thread % 8;
  from += firstRow * stride + unit * 8;
  to = unitOf<kChunk>(to + me.group * kTilePanel, firstRow, unit);
  SEQPAR_UNROLL
  for (int i = 0; i < kChunk; i += kRows) {
    ptx::cpAsync16(to + i * kPanel, from, firstRow + i < rows && unit * 8 < columns);
    from += kRows * stride;
  }
}

}  // namespace seqpar::attn::backward::sm90
