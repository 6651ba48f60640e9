// Stores of a chunk's gradients: from a thread's accumulators to the target's rows.
#pragma once

#include "kernels/attn/linear/backward/tiles_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// A chunk's rows in a target.
struct Rows {
  const Target& target;
  int64_t first;  ///< of the chunk's first row
  int rows, columns;

  /// `offset`: elements after the start of the token's head.
  template <class T>
  SEQPAR_DEVICE Rows(const Target& to, const Item<T>& item, int64_t token, int64_t offset, int theColumns)
      : target(to),
        first(item.sequence * to.batch + token * to.token + item.head * to.head + offset),
        rows(item.rowsOf(token)),
        columns(theColumns) {}

  /// Stores in two steps, so that accumulators are freed early: first tiles n and n + 1 to their place in a tile of
  /// shared memory, or to device memory if it does not allow 16-byte accesses; then the warp's rows of the warpgroup's
  /// columns from shared memory to device memory. 16-bit elements are stored as Short.
  template <class Short, int n, class Part, class P>
  SEQPAR_DEVICE void put(Short* tile, const Part& part, const P& me) const {
    if (target.wide) {
      uint32_t words[4];
      packTiles<Short>(words, part, n);
      storeTiles(tile, n, words, me);
    } else if (target.data != nullptr) {
      writePairs<Short, n, n + 2>(part, me);
    }
  }
  template <class Short, class Part, class P>
  SEQPAR_DEVICE void writeThrough(Short* tile, const Part& part, const P& me) const {
    if (target.wide) {
      SEQPAR_UNROLL
      for (int n = 0; n < P::kTiles8; n += 2) {
        uint32_t words[4];
        packTiles<Short>(words, part, n);
        storeTiles(tile, n, words, me);
      }
      copyRows<1>({tile}, 0, me);
    } else if (target.data != nullptr) {
      writePairs<Short, 0, P::kTiles8>(part, me);
    }
  }
  template <class Short, class P>
  SEQPAR_DEVICE void writePut(const Short* tile, const P& me) const {
    if (target.wide) copyRows<1>({tile}, 0, me);
  }
  /// Copies the warp's rows of the warpgroup's columns from `tile` to the target, and from `other` to the same rows of
  /// another tensor. Both allow 16-byte accesses.
  template <class Short, class P>
  SEQPAR_DEVICE void copyBoth(void* otherData, const Short* tile, const Short* other, const P& me) const {
    const int64_t distance = static_cast<uint16_t*>(otherData) - static_cast<uint16_t*>(target.data);
    copyRows<2>({tile, other}, distance, me);
  }

 private:
  /// `distance`: elements from the target of a tile to that of the next one.
  template <int kCount, class Short, class P>
  SEQPAR_DEVICE void copyRows(const Short* const (&tiles)[kCount], int64_t distance, const P& me) const {
    static_assert(P::kOwn == kPanel);
    ptx::syncwarp();
    const int unit = me.lane % 8, row = me.warpIndex * 16 + me.lane / 8, column = me.firstColumn + unit * 8;
    uint16_t* to = static_cast<uint16_t*>(target.data) + first + row * target.token + column;
    const int left = column < columns ? rows - row : 0;
    SEQPAR_UNROLL
    for (int tile = 0; tile < kCount; ++tile) {
      uint32_t words[4][4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        ptx::load(words[i], unitOf<kChunk>(tiles[tile], row + i * 4, me.firstColumn / 8 + unit));
      }
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i * 4 < left)
          ptx::storeStreaming(static_cast<void*>(to + tile * distance + i * 4 * target.token), words[i]);
      }
    }
  }
  template <class Short, int kBegin, int kEnd, class Part, class P>
  SEQPAR_DEVICE void writePairs(const Part& part, const P& me) const {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (me.row + r * 8 >= rows) continue;
      const int64_t at = first + (me.row + r * 8) * target.token;
      if (target.type == seqparFloat32) {
        float* to = static_cast<float*>(target.data) + at;
        SEQPAR_UNROLL
        for (int n = kBegin; n < kEnd; ++n) {
          if (me.column(n) < columns) ptx::storeStreaming(to + me.column(n), part[n][r * 2], part[n][r * 2 + 1]);
        }
      } else {
        uint16_t* to = static_cast<uint16_t*>(target.data) + at;
        SEQPAR_UNROLL
        for (int n = kBegin; n < kEnd; ++n) {
          const uint32_t word = ptx::pack<Short>(part[n][r * 2], part[n][r * 2 + 1]);
          if (me.column(n) < columns) ptx::storeStreaming(to + me.column(n), word);
        }
      }
    }
  }
};

template <class T>
SEQPAR_DEVICE int64_t keyOffset(const Target& target, const Item<T>& item) {
  return item.valueBlock * target.block + item.keyBlock * kBlock;
}

}  // namespace seqpar::attn::backward::sm90
