// Tiles in the layout that warpgroup_ops.h multiplies, and how two or four warpgroups share them: each has as many
// of the 128 columns, its warps 16 of the 64 tokens.
#pragma once

#include "kernels/attn/linear/backward/gates.h"
#include "kernels/attn/linear/warpgroup_ops.h"

namespace seqpar::attn::backward::sm90 {

using warpgroup::Operand;
using warpgroup::Terms;

constexpr int kPanel = warpgroup::kPanel;
constexpr int kTile = kChunk * kBlock, kTilePanel = kTile / 2;        ///< of 64 tokens, in numbers
constexpr int kMatrix = kBlock * kBlock, kMatrixPanel = kMatrix / 2;  ///< of a state
constexpr int kTilePanelBytes = kTilePanel * 2, kMatrixPanelBytes = kMatrixPanel * 2;

/// A thread among kGroups warpgroups, 2 or 4, each of which has as many columns of a tile.
template <int kGroups>
struct Place {
  static constexpr int kThreads = kGroups * warpgroup::kThreads, kOwn = kBlock / kGroups;
  static constexpr int kTiles8 = kOwn / 8;  ///< accumulator tiles of 64 x kOwn
  using Part = float[kTiles8][4];           ///< a warpgroup's columns of 64 x 128, in accumulators

  int thread, group, inGroup, warpIndex, lane, g, c;
  int row;          ///< this thread has rows row and row + 8
  int firstColumn;  ///< of the warpgroup

  SEQPAR_WARP Place()
      : Place(warp::thread(), warp::uniform(warp::thread() / warpgroup::kThreads),
              warp::uniform(warp::thread() / 32 % 4)) {}
  /// Masks tell the compiler that nothing is negative, which divisions would have to look at.
  SEQPAR_WARP Place(int theThread, int theGroup, int theWarp)
      : thread(theThread & (kThreads - 1)),
        group(theGroup & (kGroups - 1)),
        inGroup(thread % warpgroup::kThreads),
        warpIndex(theWarp & 3),
        lane(thread % 32),
        g(lane / 4),
        c(lane % 4),
        row(warpIndex * 16 + g),
        firstColumn(group * kOwn) {}
  /// The same; but what is made of it is made where it is needed, and not kept in registers from before a loop on.
  SEQPAR_WARP Place again() const { return {warp::hidden(thread), group, warpIndex}; }
  /// A barrier of those who have the rows of the state of this warpgroup's columns of keys.
  SEQPAR_WARP void syncState() const {
    if constexpr (kOwn == kPanel) {
      warpgroup::sync(group);
    } else {
      warp::syncBlock();
    }
  }

  SEQPAR_WARP int column(int n) const { return firstColumn + n * 8 + c * 2; }

  /// The warpgroup's columns in a tile: their panel, and numbers into it.
  SEQPAR_WARP int panel() const { return firstColumn / kPanel; }
  SEQPAR_WARP int inPanel() const { return firstColumn % kPanel; }
  template <class T>
  SEQPAR_WARP const T* columnsOf(const T* tile, int panelNumbers) const {
    return tile + panel() * panelNumbers + inPanel();
  }
};

/// Numbers 8 n + 2 c and the next of `row` in a panel.
template <class P>
SEQPAR_WARP int pairIndex(int row, int n, const P& me) {
  return row * kPanel + (n ^ me.g) * 8 + me.c * 2;
}
template <class T, class P>
SEQPAR_WARP uint32_t* pairOf(T* panel, int row, int n, const P& me) {
  return reinterpret_cast<uint32_t*>(panel + pairIndex(row, n, me));
}
template <class T, class P>
SEQPAR_WARP const uint32_t* pairOf(const T* panel, int row, int n, const P& me) {
  return reinterpret_cast<const uint32_t*>(panel + pairIndex(row, n, me));
}
/// Of the warpgroup's columns of a tile, accumulator tile n, this thread's row r.
template <class T, class P>
SEQPAR_WARP auto* pairAt(T* tile, int n, int r, const P& me) {
  return pairOf(tile + me.panel() * kTilePanel, me.row + r * 8, me.inPanel() / 8 + n, me);
}

/// Where 16-byte unit `unit` of a row of 128 numbers lies in panels of kRows rows.
template <int kRows, class T>
SEQPAR_WARP T* unitOf(T* tile, int row, int unit) {
  return tile + unit / 8 * kRows * kPanel + row * kPanel + ((unit % 8) ^ (row % 8)) * 8;
}

/// Fetches kRows x 128 numbers; rows and columns that do not exist become 0.
template <int kRows, int kThreads, class T>
SEQPAR_WARP void fetchRows(T* to, const T* from, int64_t stride, int rows, int columns, int thread) {
  const int firstRow = thread / 16, unit = thread % 16;
  from += firstRow * stride + unit * 8;
  to = unitOf<kRows>(to, firstRow, unit);
  SEQPAR_UNROLL
  for (int i = 0; i < kRows; i += kThreads / 16) {
    warp::copyAsync(to + i * kPanel, from, firstRow + i < rows && unit * 8 < columns);
    from += kThreads / 16 * stride;
  }
}

/// Four words of each of the four lanes of a row, word i of which belongs to 16-byte unit i, become the words of one
/// unit: that of the lane's index c.
template <class P>
SEQPAR_WARP void gatherUnit(uint32_t (&words)[4], const P& me) {
  const auto exchange = [](uint32_t word, int mask) {
    return warp::bitsOf(warp::shuffleXor(warp::ofBits(word), mask));
  };
  const bool odd = (me.c & 1) != 0, high = (me.c & 2) != 0;
  SEQPAR_UNROLL
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = exchange(odd ? words[i] : words[i + 1], 1);
    words[i] = odd ? other : words[i];
    words[i + 1] = odd ? words[i + 1] : other;
  }
  SEQPAR_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = exchange(high ? words[i] : words[i + 2], 2);
    words[i] = high ? other : words[i];
    words[i + 2] = high ? words[i + 2] : other;
  }
}

/// A target's place of this thread's rows of a chunk.
struct Rows {
  const Target& target;
  int64_t first;  ///< of row `row`
  int rows, columns;

  /// `offset` beyond the first number of the token's head.
  template <class T, class P>
  SEQPAR_WARP Rows(const Target& to, const Item<T>& item, int64_t token, int64_t offset, int theColumns, const P& me)
      : target(to),
        first(item.sequence * to.batch + (token + me.row) * to.token + item.head * to.head + offset),
        rows(item.rowsOf(token)),
        columns(theColumns) {}

  /// Writes accumulator tiles n ... n+3 of both rows. 16-bit numbers go out as Short.
  template <class Short, class P>
  SEQPAR_WARP void write(const typename P::Part& part, int n, const P& me) const {
    if (target.data == nullptr) return;
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const bool exists = me.row + r * 8 < rows;
      const int64_t at = first + r * 8 * target.token;
      if (target.type == seqparFloat32) {
        float* to = static_cast<float*>(target.data) + at;
        SEQPAR_UNROLL
        for (int i = n; i < n + 4; ++i) {
          if (exists && me.column(i) < columns) {
            warp::storeStreaming(to + me.column(i), part[i][r * 2], part[i][r * 2 + 1]);
          }
        }
        continue;
      }
      uint16_t* to = static_cast<uint16_t*>(target.data) + at;
      uint32_t words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) words[i] = warp::pack<Short>(part[n + i][r * 2], part[n + i][r * 2 + 1]);
      if (target.wide) {
        gatherUnit(words, me);
        const int column = me.firstColumn + (n + me.c) * 8;
        if (exists && column < columns) warp::storeStreaming(static_cast<void*>(to + column), words);
      } else {
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (exists && me.column(n + i) < columns) warp::storeStreaming(to + me.column(n + i), words[i]);
        }
      }
    }
  }
};

template <class T>
SEQPAR_WARP int64_t keyOffset(const Target& target, const Item<T>& item) {
  return item.valueBlock * target.block + item.keyBlock * kBlock;
}

}  // namespace seqpar::attn::backward::sm90
