// The scores A of a chunk for any channel decays, block by block of 16 x 16 tokens.
#pragma once

#include "kernels/attn/linear/backward/strong_images_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, int kHeads = 1>
struct StrongScores : StrongImages<T, kHeads> {
  using Base = StrongImages<T, kHeads>;
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
  /// has the sums. With two heads, each warpgroup has those of its head.
  SEQPAR_DEVICE bool ownsDiagonal() const { return kHeads > 1 || tile() / 2 == me.group; }
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

  /// The blocks of A below the diagonal that a warp computes: the first warps have one each, of these tiles. With two
  /// heads, a warp of a warpgroup has one far block, and the first two one near block.
  static constexpr int kOthers = kHeads;
  using Others = Block[kOthers];
  SEQPAR_DEVICE int warp() const { return ptx::uniform(me.group * 4 + me.warpIndex); }
  SEQPAR_DEVICE int laterTile(int which) const {
    if constexpr (kHeads > 1) return which == 0 ? 2 + tile() / 2 : 1 + tile() * 2;
    return warp() >= 3 ? 3 : warp() >= 1 ? 2 : 1;
  }
  SEQPAR_DEVICE int earlierTile(int which) const {
    if constexpr (kHeads > 1) return which == 0 ? tile() % 2 : tile() * 2;
    return warp() - laterTile(which) * (laterTile(which) - 1) / 2;
  }
  SEQPAR_DEVICE bool hasOther(int which) const {
    if constexpr (kHeads > 1) return which == 0 || tile() < 2;
    return warp() < kBetween;
  }

  SEQPAR_DEVICE void multiplyOther(Others& others, Distance distance) const {
    SEQPAR_UNROLL
    for (int which = 0; which < kOthers; ++which) {
      if (!hasOther(which)) continue;
      if ((laterTile(which) / 2 == earlierTile(which) / 2) != (distance == Distance::Near)) continue;
      multiplyOther(others[which], laterTile(which), earlierTile(which));
    }
  }
  SEQPAR_DEVICE void multiplyOther(Block& a, int laterTile, int earlierTile) const {
    const ptx::MatrixRows left{me.lane};
    const ptx::MatrixRowsAcross right{me.lane};
    Block ofRests = {};  // apart, so that fewer products wait for others
    SEQPAR_UNROLL
    for (int step = 0; step < Base::Products::kSteps; ++step) {
      const auto at = [&](const Bf16* from, int row, int half) {
        return unitOf<kChunk>(Base::Products::ofHead(from, me), row, step * 2 + half);
      };
      const int later = left.row(laterTile * kTileRows), earlier = right.row(earlierTile * kTileRows);
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

  /// A, and its remainder after it; with two heads, after the states' gradients.
  SEQPAR_DEVICE T* matrixA() const { return Base::Products::ofHead(memory.before + kTile, me); }
  SEQPAR_DEVICE T* restOfA() const { return kHeads == 1 ? matrixA() + kTilePanel : memory.afterAfter(me); }
  /// Stores A in T with remainders, and zeros above the diagonal.
  SEQPAR_DEVICE void storeA(const Block& own, const Others& others) const {
    if (ownsDiagonal()) storeSplit(own, tile(), tile());
    SEQPAR_UNROLL
    for (int which = 0; which < kOthers; ++which) {
      if (!hasOther(which)) continue;
      storeSplit(others[which], laterTile(which), earlierTile(which));
      const Fragment zeros = {0, 0, 0, 0};
      storeBlock(matrixA(), zeros, earlierTile(which), laterTile(which));
      storeBlock(restOfA(), zeros, earlierTile(which), laterTile(which));
    }
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
