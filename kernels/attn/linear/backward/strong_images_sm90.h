// Images of a chunk's queries and keys for any channel decays: only factors of at most 1 are multiplied.
//
// Pairs of tokens t > s are ordered by h, the highest bit where t and s differ: 32, 16, ... 1. In blocks of 2h tokens,
// t is in the upper half and s in the lower one. With the decays relative to the end of the lower half, the factors of
// q_t and k_s are at most 1. A token is in one half only, so one matrix x contains q of the upper halves and k of the
// lower ones: the pairs of h have A = x x^T, and the product of the symmetric dA with x contains dq in its upper rows
// and dk in its lower ones.
//
// x and dA are bf16 with their remainders in bf16: they have 16 bits, and the range of fp32, however small rows are.
//
// x of h = 32, then x of h = 16, is in shared memory in place of the state, because other warps read it. x of smaller h
// is computed by the warp that multiplies it.
#pragma once

#include "kernels/attn/linear/backward/strong_decays_sm90.h"
#include "kernels/attn/linear/backward/terms_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// A left operand of 16 x 16, or two accumulator tiles in the order of loadTiles(), with its remainder.
struct Split {
  Fragment words, rests;

  SEQPAR_DEVICE void set(int i, float low, float high) {
    words[i] = ptx::pack<Bf16>(low, high);
    rests[i] = restOf<Bf16>(low, high, words[i]);
  }
  SEQPAR_DEVICE void load(const Bf16* at, const Bf16* restsAt) {
    ptx::ldmatrixX4(words, at);
    ptx::ldmatrixX4(rests, restsAt);
  }
  SEQPAR_DEVICE void loadTransposed(const Bf16* at, const Bf16* restsAt) {
    ptx::ldmatrixX4Trans(words, at);
    ptx::ldmatrixX4Trans(rests, restsAt);
  }
};

/// 16 x 16, in accumulators.
using Block = float[2][4];

/// c += a b, without the product of the remainders. The words of `b` are those of both columns' operands.
SEQPAR_DEVICE void multiplySplit(Block& c, const Split& a, const Split& b) {
  multiplyPair<Bf16>(c[0], c[1], a.words, b.words);
  multiplyPair<Bf16>(c[0], c[1], a.rests, b.words);
  multiplyPair<Bf16>(c[0], c[1], a.words, b.rests);
}

/// kHeads: as ChunkConsumer's.
template <class T, int kHeads = 1>
struct StrongImages : TermsConsumer<T, ChannelMemory<T, kHeads>, kHeads> {
  using Base = TermsConsumer<T, ChannelMemory<T, kHeads>, kHeads>;
  using Strong = StrongDecays<T>;
  using Exponents = typename Strong::Exponents;
  using Base::chunk, Base::me, Base::memory, Base::task;

  SEQPAR_DEVICE const typename Strong::Sums& decays() const { return memory.decays.sums[chunk % 2]; }
  SEQPAR_DEVICE int tile() const { return me.warpIndex; }
  SEQPAR_DEVICE int unit(int n) const { return me.firstColumn / 8 + n; }
  SEQPAR_DEVICE Bf16* x() const { return reinterpret_cast<Bf16*>(memory.before); }
  SEQPAR_DEVICE Bf16* restOfX() const { return x() + kTile; }

  /// A distance of tiles: h = 16 or 32.
  enum class Distance { Near, Far };
  /// Whether the warp's tile is in the upper half.
  SEQPAR_DEVICE bool isUpper(Distance distance) const {
    return distance == Distance::Near ? tile() % 2 == 1 : tile() >= 2;
  }
  /// Decays between the warp's tokens and the border of both halves.
  SEQPAR_DEVICE void decayToBorder(Exponents& decay, Distance distance, const Fragment& ones, int n) const {
    Strong::clear(decay);
    Strong::add(decay, ones, decays(), tile(), unit(n), me);
    // In blocks of 64, the first and last tiles are 16 tokens away from the border.
    if (distance == Distance::Far && (tile() == 0 || tile() == 3)) {
      Strong::addTile(decay, decays(), tile() == 0 ? 1 : 2, unit(n), me);
    }
    Strong::raise(decay);
  }
  SEQPAR_DEVICE void onesToBorder(Fragment& ones, Distance distance) const {
    const int anchor = isUpper(distance) ? Strong::kStart : Strong::kEnd;
    selectBetween(ones, anchor, anchor, me.lane);
  }
  SEQPAR_DEVICE void storeX(Distance distance) const {
    const T* from = isUpper(distance) ? memory.q(chunk) : memory.k(chunk);
    Fragment ones;
    onesToBorder(ones, distance);
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; n += 2) {
      Fragment numbers;
      Split own;
      Exponents decay;
      loadTiles(numbers, from, n, me);
      decayToBorder(decay, distance, ones, n);
      multiplyDecays(own, numbers, decay);
      storeTiles(x(), n, own.words, me);
      storeTiles(restOfX(), n, own.rests, me);
    }
  }
  SEQPAR_DEVICE static void multiplyDecays(Split& to, const Fragment& from, const Exponents& decay) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      to.set(i, Strong::template lowOf<T>(from, decay, i), Strong::template highOf<T>(from, decay, i));
    }
  }

  /// Blocks of 2 h <= 16 tokens.
  struct Halves {
    bool upper[2];  ///< the half of the thread's rows g and g + 8
    Fragment ones;
    uint32_t mask[2];  ///< of words of a left operand: pairs of h, if its rows and columns are, or are not, of the same
                       ///< eight tokens

    SEQPAR_DEVICE Halves(int h, const Half& me) : upper{(me.g & h) != 0, ((me.g + 8) & h) != 0} {
      selectBetween(ones, anchorOf(me.g, h), anchorOf(me.g + 8, h), me.lane);
      mask[0] = (differAt(me.g, me.c * 2, h) ? 0xffffu : 0u) | (differAt(me.g, me.c * 2 + 1, h) ? 0xffff0000u : 0u);
      mask[1] = h == 8 ? 0xffffffffu : 0u;
    }
    SEQPAR_DEVICE uint32_t maskOf(int i) const { return mask[i % 2 == i / 2 ? 0 : 1]; }
  };
  /// x of accumulator tiles n and n + 1, and its decays.
  SEQPAR_DEVICE void multiplyWithin(Split& to, Exponents& decay, const Halves& halves, int n) const {
    Fragment qs, ks;
    loadTiles(qs, memory.q(chunk), n, me);
    loadTiles(ks, memory.k(chunk), n, me);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) qs[i] = halves.upper[i % 2] ? qs[i] : ks[i];
    Strong::clear(decay);
    Strong::add(decay, halves.ones, decays(), tile(), unit(n), me);
    Strong::raise(decay);
    multiplyDecays(to, qs, decay);
  }
};

}  // namespace seqpar::attn::backward::sm90
