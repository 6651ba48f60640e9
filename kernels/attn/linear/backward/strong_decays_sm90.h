// Channel decays of a chunk with strong decays, for the sm_90 gradients' kernels. The chunk's Sums contain the base-2
// logarithm of each token's decay in fp16 instead of sums in fixed point.
//
// Exponents of the decays between tokens are sums of the logarithms between them (between_tokens.h).
#pragma once

#include "kernels/attn/linear/backward/channel_decays_sm90.h"
#include "kernels/attn/linear/between_tokens.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct StrongDecays {
  using Sums = typename ChannelDecays<T>::Sums;
  using Exponents = float[2][4];                           ///< of 16 tokens x 16 channels: two accumulator tiles
  static constexpr int kStart = -1, kEnd = kTileRows - 1;  ///< anchors: before a tile, and its last token

  SEQPAR_DEVICE static void clear(Exponents& to) { backward::clear(to); }
  /// Adds the selected logarithms of a tile of 16 tokens, in channels 8 * unit to 8 * unit + 15.
  SEQPAR_DEVICE static void add(Exponents& to, const uint32_t (&ones)[4], const Sums& sums, int tile, int unit,
                                const Half& me) {
    const int row = tile * kTileRows + me.lane % 16;
    const uint16_t* from = sums.fixed + unit / 8 * kTilePanel + row * kPanel;
    uint32_t logs[4];
    ptx::ldmatrixX4Trans(logs, from + ChannelDecays<T>::unitAt(row, unit % 8 + me.lane / 16) * 8);
    ptx::mmaM16N8K16<Fp16>(to[0], ones, logs[0], logs[1]);
    ptx::mmaM16N8K16<Fp16>(to[1], ones, logs[2], logs[3]);
  }
  SEQPAR_DEVICE static void addTile(Exponents& to, const Sums& sums, int tile, int unit, const Half& me) {
    const uint32_t all[4] = {kHalfOnes, kHalfOnes, kHalfOnes, kHalfOnes};
    add(to, all, sums, tile, unit, me);
  }
  /// From the chunk's start to the warp's tokens, and from these to the chunk's end.
  SEQPAR_DEVICE static void fromStart(Exponents& to, const Sums& sums, int unit, const Half& me) {
    uint32_t ones[4];
    selectBetween(ones, kStart, kStart, me.lane);
    clear(to);
    SEQPAR_UNROLL
    for (int tile = 0; tile < kTiles - 1; ++tile) {
      if (tile < me.warpIndex) addTile(to, sums, tile, unit, me);
    }
    add(to, ones, sums, me.warpIndex, unit, me);
  }
  SEQPAR_DEVICE static void toEnd(Exponents& to, const Sums& sums, int unit, const Half& me) {
    uint32_t ones[4];
    selectBetween(ones, kEnd, kEnd, me.lane);
    clear(to);
    SEQPAR_UNROLL
    for (int tile = 1; tile < kTiles; ++tile) {
      if (tile > me.warpIndex) addTile(to, sums, tile, unit, me);
    }
    add(to, ones, sums, me.warpIndex, unit, me);
  }
  /// Exponents to factors.
  SEQPAR_DEVICE static void raise(Exponents& x) {
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) x[n][e] = ptx::ex2ApproxOfDecay(x[n][e]);
    }
  }
  /// Words of two accumulator tiles, in the order of loadTiles(), times factors.
  template <class From>
  SEQPAR_DEVICE static float lowOf(const uint32_t (&words)[4], const Exponents& factors, int i) {
    return ptx::lowOf<From>(words[i]) * factors[i / 2][i % 2 * 2];
  }
  template <class From>
  SEQPAR_DEVICE static float highOf(const uint32_t (&words)[4], const Exponents& factors, int i) {
    return ptx::highOf<From>(words[i]) * factors[i / 2][i % 2 * 2 + 1];
  }

  /// Decays of the queries from the chunk's start, transposed: the thread's two channels in the rows of a left operand,
  /// 16 tokens after another.
  struct Transposed {
    float before[4] = {0, 0, 0, 0};  ///< of all earlier tokens

    /// Scales `words`, the queries of tile `step` as ChunkImages::queriesOf() loads them, and splits them.
    SEQPAR_DEVICE void scale(uint32_t (&words)[4], uint32_t (&rests)[4], const Sums& sums, int step, float scale,
                             const Half& me) {
      const ptx::MatrixRowsAcross own{me.lane};
      const int row = step * kTileRows + own.row(), unit = me.warpIndex * 2 + own.half();
      uint32_t logs[4];
      ptx::ldmatrixX4Trans(logs,
                           sums.fixed + me.group * kTilePanel + row * kPanel + ChannelDecays<T>::unitAt(row, unit) * 8);
      float sum[2][4];
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) sum[0][e] = sum[1][e] = before[e];
      // Terms 2 c and 2 c + 1 of column g: tokens that are not later than token g.
      const uint32_t notLater = (me.c * 2 <= me.g ? kHalfOne : 0u) | (me.c * 2 + 1 <= me.g ? kHalfOne << 16 : 0u);
      ptx::mmaM16N8K16<Fp16>(sum[0], logs, notLater, 0u);
      ptx::mmaM16N8K16<Fp16>(sum[1], logs, kHalfOnes, notLater);
      ptx::mmaM16N8K16<Fp16>(before, logs, kHalfOnes, kHalfOnes);
      raise(sum);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float low = scale * lowOf<T>(words, sum, i), high = scale * highOf<T>(words, sum, i);
        words[i] = ptx::pack<T>(low, high);
        rests[i] = restOf<T>(low, high, words[i]);
      }
    }
  };
};

}  // namespace seqpar::attn::backward::sm90
