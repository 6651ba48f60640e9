// The scores A of a chunk for any channel decays, block by block of 16 x 16 tokens.
#pragma once

#include "kernels/attn/linear/backward/strong_images_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct StrongScores : StrongImages<T> {
  using Base = StrongImages<T>;
  using Base::chunk, Base::me, Base::memory, Base::task;
  using Base::decayOf, Base::far, Base::loadQueriesAndKeys, Base::multiplyDecays, Base::near, Base::scales, Base::tile;
  using typename Base::Block, typename Base::Exponents, typename Base::Halves;
  static constexpr int kBetween = 6;  ///< blocks below the diagonal ones

  SEQPAR_DEVICE T* matrixA() const { return this->operands().a; }

  /// The block of A of the warp's tile with itself, from the warpgroup's channels.
  SEQPAR_DEVICE void multiplyOwn(Block& a) const {
    Block product = {};
    SEQPAR_ROLLED
    for (int n = 0; n < Half::kTiles8; n += 2) {
      uint32_t qs[4], ks[4];
      loadQueriesAndKeys(qs, ks, n);
      ptx::mmaM16N8K16<T>(product[0], qs, ks[0], ks[2]);
      ptx::mmaM16N8K16<T>(product[1], qs, ks[1], ks[3]);
    }
    const float factor = powerOf2(-scales().queries - scales().keys);
    addTo(
        a, product, task.scale, [](int t, int s) { return t == s; }, true);
    SEQPAR_ROLLED
    for (int h = 8; h > 0; h /= 2) {
      const Halves halves = Halves::within(*this, h);
      backward::clear(product);
      SEQPAR_ROLLED
      for (int n = 0; n < Half::kTiles8; n += 2) {
        uint32_t qs[4], ks[4], x[4];
        loadQueriesAndKeys(qs, ks, n);
        Exponents decay;
        decayOf(decay, halves, n, false);
        multiplyDecays(x, qs, ks, decay, halves);
        ptx::mmaM16N8K16<Fp16>(product[0], x, x[0], x[2]);
        ptx::mmaM16N8K16<Fp16>(product[1], x, x[1], x[3]);
      }
      addTo(
          a, product, factor, [h](int t, int s) { return t > s && differAt(t, s, h); }, false);
    }
  }
  /// Takes the elements of `product` that `takes` selects; `first`: the others become 0.
  template <class Takes>
  SEQPAR_DEVICE void addTo(Block& a, const Block& product, float factor, const Takes& takes, bool first) const {
    const ptx::AccumulatorLayout layout{me.lane};
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (first) a[n][e] = 0;
        if (takes(layout.row(0, e), layout.column(n * 8, e))) a[n][e] = factor * product[n][e];
      }
    }
  }

  /// Blocks of A on the diagonal are the sums of both warpgroups' parts; the warpgroup of their columns has the sums.
  SEQPAR_DEVICE bool ownsDiagonal() const { return tile() / 2 == me.group; }
  SEQPAR_DEVICE float* partAt(int n, int r) const {
    return reinterpret_cast<float*>(matrixA()) + tile() * 256 + (me.g + r * 8) * 16 + n * 8 + me.c * 2;
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

  SEQPAR_DEVICE void multiplyOther(Block& a) const {
    backward::clear(a);
    if (warp() >= kBetween) return;
    const Fp16* x = laterTile() / 2 == earlierTile() / 2 ? near() : far();
    const ptx::MatrixRows left{me.lane};
    const ptx::MatrixRowsAcross right{me.lane};
    SEQPAR_ROLLED
    for (int step = 0; step < kBlock / 16; ++step) {
      uint32_t queries[4], keys[4];
      ptx::ldmatrixX4(queries, unitOf<kChunk>(x, left.row(laterTile() * kTileRows), step * 2 + left.half()));
      ptx::ldmatrixX4(keys, unitOf<kChunk>(x, right.row(earlierTile() * kTileRows), step * 2 + right.half()));
      multiplyPair<Fp16>(a[0], a[1], queries, keys);
    }
    const float factor = powerOf2(-scales().queries - scales().keys);
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) a[n][e] *= factor;
    }
  }
  /// Stores A, rounded, and zeros above the diagonal. `rests`: the remainders of both blocks.
  SEQPAR_DEVICE void storeA(const Block& own, const Block& other, uint32_t (&rests)[2][4]) const {
    uint32_t words[2][4];
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* pairs[2] = {own[i / 2] + i % 2 * 2, other[i / 2] + i % 2 * 2};
      SEQPAR_UNROLL
      for (int b = 0; b < 2; ++b) {
        words[b][i] = ptx::pack<T>(pairs[b][0], pairs[b][1]);
        rests[b][i] = restOf<T>(pairs[b][0], pairs[b][1], words[b][i]);
      }
    }
    storeBlocks(words);
    if (warp() >= kBetween) return;
    const uint32_t zeros[4] = {0, 0, 0, 0};
    storeBlock(zeros, earlierTile(), laterTile());
  }
  SEQPAR_DEVICE void storeBlocks(const uint32_t (&words)[2][4]) const {
    if (ownsDiagonal()) storeBlock(words[0], tile(), tile());
    if (warp() < kBetween) storeBlock(words[1], laterTile(), earlierTile());
  }
  SEQPAR_DEVICE void storeBlock(const uint32_t (&words)[4], int row, int column) const {
    const ptx::MatrixRows own{me.lane};
    ptx::stmatrixX4(unitOf<kChunk>(matrixA(), own.row(row * kTileRows), column * 2 + own.half()), words);
  }
};

}  // namespace seqpar::attn::backward::sm90
