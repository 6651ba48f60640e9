// Images of a chunk's queries and keys for any channel decays: only factors of at most 1 are multiplied.
//
// Pairs of tokens t > s are ordered by h, the highest bit where t and s differ: 32, 16, ... 1. In blocks of 2h tokens,
// t is in the upper half and s in the lower one. With the decays relative to the end of the lower half, the factors of
// q_t and k_s are at most 1. A token is in one half only, so one matrix x contains q of the upper halves and k of the
// lower ones: the pairs of h have A = x x^T, and the product of the symmetric dA with x contains dq in its upper rows
// and dk in its lower ones. x is in fp16, scaled like other images (images_sm90.h).
//
// x of h = 32 and h = 16 is in shared memory in place of the state's gradient, because other warps read it. x of
// smaller h is computed by the warp that multiplies it.
#pragma once

#include "kernels/attn/linear/backward/chunk_sm90.h"
#include "kernels/attn/linear/backward/strong_decays_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct StrongImages : ChunkConsumer<T, ChannelMemory<T>> {
  using Base = ChunkConsumer<T, ChannelMemory<T>>;
  using Strong = StrongDecays<T>;
  using Exponents = typename Strong::Exponents;
  using Block = float[2][4];  ///< 16 x 16, in accumulators
  using Base::chunk, Base::me, Base::memory, Base::task;

  SEQPAR_DEVICE const ImageScales& scales() const { return memory.images[chunk % 2]; }
  SEQPAR_DEVICE const typename Strong::Sums& decays() const { return memory.decays.sums[chunk % 2]; }
  SEQPAR_DEVICE int tile() const { return me.warpIndex; }
  SEQPAR_DEVICE int unit(int n) const { return me.firstColumn / 8 + n; }
  SEQPAR_DEVICE Fp16* near() const { return reinterpret_cast<Fp16*>(memory.after); }  ///< x of h = 16
  SEQPAR_DEVICE Fp16* far() const { return near() + kTile; }                          ///< x of h = 32

  /// A token's half of its block: upper[r] for the thread's row g + 8 r.
  struct Halves {
    bool upper[2];
    float scales[2];  ///< of the images
    uint32_t ones[4];

    SEQPAR_DEVICE Halves(const StrongImages& of, bool upper0, bool upper1, int anchor0, int anchor1)
        : upper{upper0, upper1} {
      const float ofQueries = of.task.scale * powerOf2(of.scales().queries), ofKeys = powerOf2(of.scales().keys);
      scales[0] = upper0 ? ofQueries : ofKeys;
      scales[1] = upper1 ? ofQueries : ofKeys;
      selectBetween(ones, anchor0, anchor1, of.me.lane);
    }
    /// Blocks of 2 h <= 16 tokens.
    SEQPAR_DEVICE static Halves within(const StrongImages& of, int h) {
      const int t0 = of.me.g, t1 = t0 + 8;
      return Halves(of, (t0 & h) != 0, (t1 & h) != 0, anchorOf(t0, h), anchorOf(t1, h));
    }
    /// All tokens of the tile are in the same half.
    SEQPAR_DEVICE static Halves between(const StrongImages& of, bool inUpper) {
      const int anchor = inUpper ? Strong::kStart : Strong::kEnd;
      return Halves(of, inUpper, inUpper, anchor, anchor);
    }
  };
  SEQPAR_DEVICE bool upperNear() const { return tile() % 2 == 1; }
  SEQPAR_DEVICE bool upperFar() const { return tile() >= 2; }
  /// The first and last tiles are 16 tokens away from the middle of the chunk.
  SEQPAR_DEVICE void addFar(Exponents& decay, int n) const {
    if (tile() == 0) Strong::addTiles(decay, 1, 2, decays(), unit(n), me);
    if (tile() == 3) Strong::addTiles(decay, 2, 3, decays(), unit(n), me);
  }
  SEQPAR_DEVICE void decayOf(Exponents& decay, const Halves& halves, int n, bool far) const {
    Strong::clear(decay);
    Strong::add(decay, halves.ones, decays(), tile(), unit(n), me);
    if (far) addFar(decay, n);
    Strong::raise(decay);
  }
  /// x of accumulator tiles n and n + 1, from q and k.
  SEQPAR_DEVICE static void multiplyDecays(uint32_t (&x)[4], const uint32_t (&qs)[4], const uint32_t (&ks)[4],
                                           const Exponents& decay, const Halves& halves) {
    uint32_t from[4];
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) from[i] = halves.upper[i % 2] ? qs[i] : ks[i];
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      x[i] = packHalves(halves.scales[i % 2] * Strong::template lowOf<T>(from, decay, i),
                        halves.scales[i % 2] * Strong::template highOf<T>(from, decay, i));
    }
  }
  SEQPAR_DEVICE void loadQueriesAndKeys(uint32_t (&qs)[4], uint32_t (&ks)[4], int n) const {
    loadTiles(qs, memory.q(chunk), n, me);
    loadTiles(ks, memory.k(chunk), n, me);
  }

  SEQPAR_DEVICE void storeBetween() const {
    const Halves nearHalves = Halves::between(*this, upperNear()), farHalves = Halves::between(*this, upperFar());
    SEQPAR_ROLLED
    for (int n = 0; n < Half::kTiles8; n += 2) {
      uint32_t qs[4], ks[4], x[4];
      loadQueriesAndKeys(qs, ks, n);
      Exponents decay;
      decayOf(decay, nearHalves, n, false);
      multiplyDecays(x, qs, ks, decay, nearHalves);
      storeTiles(near(), n, x, me);
      decayOf(decay, farHalves, n, true);
      multiplyDecays(x, qs, ks, decay, farHalves);
      storeTiles(far(), n, x, me);
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
