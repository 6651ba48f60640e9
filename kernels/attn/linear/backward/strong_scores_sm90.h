// The scores A of a chunk for any channel decays, block by block of 16 x 16 tokens.
#pragma once

#include "kernels/attn/linear/backward/strong_images_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct StrongScores : StrongImages<T> {
  using Base = StrongImages<T>;
  using Base::chunk, Base::me, Base::memory, Base::task;
  using Base::restOfX, Base::tile, Base::x;
  using typename Base::Distance, typename Base::Halves;
  static constexpr int kBetween = 6;  ///< blocks below the diagonal ones

  /// Adds the scores of each token with itself, from the warpgroup's channels.
  SEQPAR_DEVICE void addSelf(Block& a) const {
    Block product = {};
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; n += 2) {
      Fragment qs, ks;
      loadTiles(qs, memory.q(chunk), n, me);
      loadTiles(ks, memory.k(chunk), n, me);
      ptx::mmaM16N8K16<T>(product[0], qs, ks[0], ks[2]);
      ptx::mmaM16N8K16<T>(product[1], qs, ks[1], ks[3]);
    }
    take(a, product, [](int t, int s) { return t == s; });
  }
  /// Adds the scores of the warp's pairs of h from some of its channels.
  SEQPAR_DEVICE static void multiplyWithItself(Block& product, const Split& x) {
    multiplySplit(product, x,
                  {{x.words[0], x.words[2], x.words[1], x.words[3]}, {x.rests[0], x.rests[2], x.rests[1], x.rests[3]}});
  }
  /// Takes the elements of `product` that `takes` selects.
  template <class Takes>
  SEQPAR_DEVICE void take(Block& a, const Block& product, const Takes& takes) const {
    const ptx::AccumulatorLayout layout{me.lane};
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (takes(layout.row(0, e), layout.column(n * 8, e))) a[n][e] = product[n][e];
      }
    }
  }

  /// Blocks of A on the diagonal are the sums of both warpgroups' parts, in place of v; the warpgroup of their columns
  /// has the sums.
  SEQPAR_DEVICE bool ownsDiagonal() const { return tile() / 2 == me.group; }
  SEQPAR_DEVICE float* partAt(int n, int r) const {
    return reinterpret_cast<float*>(memory.v(chunk)) + tile() * 256 + (me.g + r * 8) * 16 + n * 8 + me.c * 2;
  }
  SEQPAR_DEVICE void storePart(const Block& a) const {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) ptx::storePair(partAt(i / 2, i % 2), a[i / 2][i % 2 * 2], a[i / 2][i % 2 * 2 + 1]);
  }
  SEQPAR_DEVICE void addPart(Block& a) const {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      float low, high;
      ptx::loadPair(partAt(i / 2, i % 2), low, high);
      a[i / 2][i % 2 * 2] += low;
      a[i / 2][i % 2 * 2 + 1] += high;
    }
  }

  /// The first warps compute one block of A below the diagonal each, of these tiles.
  SEQPAR_DEVICE int warp() const { return ptx::uniform(me.group * 4 + me.warpIndex); }
  SEQPAR_DEVICE int laterTile() const { return warp() >= 3 ? 3 : warp() >= 1 ? 2 : 1; }
  SEQPAR_DEVICE int earlierTile() const { return warp() - laterTile() * (laterTile() - 1) / 2; }

  SEQPAR_DEVICE void multiplyOther(Block& a, Distance distance) const {
    if (warp() >= kBetween) return;
    if ((laterTile() / 2 == earlierTile() / 2) != (distance == Distance::Near)) return;
    const ptx::MatrixRows left{me.lane};
    const ptx::MatrixRowsAcross right{me.lane};
    Block ofRests = {};  // apart, so that fewer products wait for others
    SEQPAR_UNROLL
    for (int step = 0; step < kBlock / 16; ++step) {
      const auto at = [&](const Bf16* from, int row, int half) { return unitOf<kChunk>(from, row, step * 2 + half); };
      const int later = left.row(laterTile() * kTileRows), earlier = right.row(earlierTile() * kTileRows);
      Split queries, keys;
      queries.load(at(x(), later, left.half()), at(restOfX(), later, left.half()));
      keys.load(at(x(), earlier, right.half()), at(restOfX(), earlier, right.half()));
      multiplyPair<Bf16>(a[0], a[1], queries.words, keys.words);
      multiplyPair<Bf16>(ofRests[0], ofRests[1], queries.rests, keys.words);
      multiplyPair<Bf16>(ofRests[0], ofRests[1], queries.words, keys.rests);
    }
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) a[n][e] += ofRests[n][e];
    }
  }

  /// A, and its remainder after it.
  SEQPAR_DEVICE T* matrixA() const { return memory.before + kTile; }
  SEQPAR_DEVICE T* restOfA() const { return matrixA() + kTilePanel; }
  /// Stores A in T with remainders, and zeros above the diagonal.
  SEQPAR_DEVICE void storeA(const Block& own, const Block& other) const {
    if (ownsDiagonal()) storeSplit(own, tile(), tile());
    if (warp() >= kBetween) return;
    storeSplit(other, laterTile(), earlierTile());
    const Fragment zeros = {0, 0, 0, 0};
    storeBlock(matrixA(), zeros, earlierTile(), laterTile());
    storeBlock(restOfA(), zeros, earlierTile(), laterTile());
  }

 private:
  SEQPAR_DEVICE void storeSplit(const Block& a, int row, int column) const {
    Fragment words, rests;
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float low = task.scale * a[i / 2][i % 2 * 2], high = task.scale * a[i / 2][i % 2 * 2 + 1];
      words[i] = ptx::pack<T>(low, high);
      rests[i] = restOf<T>(low, high, words[i]);
    }
    storeBlock(matrixA(), words, row, column);
    storeBlock(restOfA(), rests, row, column);
  }
  SEQPAR_DEVICE void storeBlock(T* to, const Fragment& words, int row, int column) const {
    const ptx::MatrixRows own{me.lane};
    ptx::stmatrixX4(unitOf<kChunk>(to, own.row(row * kTileRows), column * 2 + own.half()), words);
  }
};

}  // namespace seqpar::attn::backward::sm90
