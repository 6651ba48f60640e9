// Images: operands of a chunk's products (queries and keys with their decays, and the matrix dA). If T is bf16, they
// are in fp16, which has three bits more, scaled by a power of 2 that is chosen from the chunk's largest element. A
// segment with elements too small for that is computed again (gradients_sm90.h).
//
// The scale of keys leaves range for the decays that divide them, at least 2^kLeastTotal: the less a chunk decays, the
// more bits its small elements have, because fp16 has fewer bits below 2^-14.
#pragma once

#include "kernels/attn/linear/backward/memory_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// 2^exponent, from -126 to 127.
SEQPAR_DEVICE float powerOf2(int exponent) {
  return asFloat(static_cast<uint32_t>(exponent + 127) << 23);
}
/// An exponent of 2 above `x`, which must not be negative; NaN and inf: 129.
SEQPAR_DEVICE int exponentAbove(float x) {
  return static_cast<int>(asBits(x) >> 23) - 126;
}
/// Packs two values, within its range, as fp16.
SEQPAR_DEVICE uint32_t packHalves(float low, float high) {
  return floatsToHalves(low, high);
}

/// With two heads, each has its own scales.
template <class T, int kHeads = 1>
struct ChunkImages {
  using Memory = ChannelMemory<T, kHeads>;
  static constexpr float kLeastTotal = -28;  ///< smallest sum of log-decays of a chunk with images
  static constexpr int kMost = 15;           ///< images are below 2^kMost: half of the range of fp16
  static constexpr int kFarthest = 24;       ///< queries and keys beyond 2^kFarthest or its inverse have no images
  static constexpr int kMostOfKeys = 11;     ///< exponent of the keys' scale; scaleOf() relies on it

  /// The smallest of numbers that are not 0.
  struct Smallest {
    uint32_t below = 0;  ///< 2^32 less twice its bits in fp32; 0: there is none

    SEQPAR_DEVICE void add(uint32_t bits) { below = larger(below, bits * 0xfffffffeu); }
    /// Units of 8 elements in T, as the largest of each, in the rows that a producer has loaded. Returns the largest of
    /// all, as bits of T.
    SEQPAR_DEVICE uint32_t add(const T* from) {
      uint32_t largest = 0;
      below = 0;
      SEQPAR_UNROLL
      for (int i = 0; i < kChunk; i += Half::kThreads / 16) {
        uint32_t words[4], pair = 0;
        ptx::load(words, from + i * kPanel);
        SEQPAR_UNROLL
        for (const uint32_t word : words) pair = ptx::maxU16x2(pair, word & 0x7fff7fffu);
        const uint32_t unit = larger(pair & 0xffffu, pair >> 16);
        largest = larger(largest, unit);
        below = larger(below, unit * 0xfffe0000u);
      }
      return largest;
    }
    /// Whether it is below 2^exponent.
    SEQPAR_DEVICE bool isBelow(int exponent) const { return below > 0u - 2 * asBits(powerOf2(exponent)); }
  };

  /// Producers, after their own copies have arrived: determines the largest queries and keys, for scalesOf() after a
  /// barrier, and the smallest ones, for note().
  SEQPAR_DEVICE void measure(int chunk, Memory& memory, const Half& me) {
    const int row = kHeads == 1 ? me.thread / 16 : me.inGroup / 8,
              unit = kHeads == 1 ? me.thread % 16 : me.group * 8 + me.thread % 8;
    uint32_t q = queries.add(unitOf<kChunk>(memory.q(chunk), row, unit)),
             k = keys.add(unitOf<kChunk>(memory.k(chunk), row, unit));
    if (me.thread < kBlock / 4) {  // one warp
      uint32_t totals[4], least = 0;
      ptx::load(totals, memory.decays.sums[chunk % 2].totals + me.thread * 4);
      SEQPAR_UNROLL
      for (const uint32_t total : totals) least = larger(least, total & kAbsolute);
      SEQPAR_UNROLL
      for (int head = 0; head < kHeads; ++head) {
        const uint32_t ofHead = ptx::reduxMax(me.lane * kHeads / 32 == head ? least : 0u);
        if (me.lane == 0) memory.leastTotal[head] = ofHead;
      }
    }
    q = ptx::reduxMax(q);
    k = ptx::reduxMax(k);
    if (me.lane == 0) {
      memory.largest[me.thread / 32][0] = q;
      memory.largest[me.thread / 32][1] = k;
    }
  }
  /// Whether the chunk of a head uses images, and their scales. `scale`: factor of queries.
  SEQPAR_DEVICE static ImageScales scalesOf(const Memory& memory, float scale, int head = 0) {
    uint32_t q = 0, k = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < kWarps; i += 2) {
      uint32_t both[4];
      ptx::load(both, memory.largest[head * kWarps + i]);
      q = larger(q, larger(both[0], both[2]));
      k = larger(k, larger(both[1], both[3]));
    }
    const int ofQ = exponentOf(fabsf(scale) * asFloat(q << 16)), ofK = exponentOf(asFloat(k << 16));
    const float decay = asFloat(memory.leastTotal[head]);
    if (!(decay <= -kLeastTotal) || abs(ofQ) > kFarthest || abs(ofK) > kFarthest) return {0, 0, 0};
    const int ofKeys = kMost - ofK - static_cast<int>(decay) - 1;
    return {1, kMost - ofQ, ofKeys < kMostOfKeys ? ofKeys : kMostOfKeys};
  }
  /// Notes whether the images have a unit of 8 channels without an element of kLeastOfUnits, although not all are 0.
  SEQPAR_DEVICE void note(const ImageScales& scales, float scale, Memory& memory, const Half& me) const {
    const int ofQueries = scales.queries + exponentAbove(fabsf(scale)) -
                          static_cast<int>(asFloat(memory.leastTotal[Memory::headOf(me)])) - 2;
    const bool wide = queries.isBelow(kLeastOfUnits - ofQueries) || keys.isBelow(kLeastOfUnits - scales.keys);
    if (!ptx::voteAll(!wide) && me.lane == 0) memory.wide[me.thread / 32] = 1;
  }

  /// Consumers: determines the largest element of dA, for scaleOf() after a barrier, and the smallest one.
  template <int N>
  SEQPAR_DEVICE static void measure(const float (&dA)[N][4], Smallest& smallest, Memory& memory, const Half& me) {
    float most = 0;
    SEQPAR_UNROLL
    for (int n = 0; n < N; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        most = fmaxf(most, fabsf(dA[n][e]));
        smallest.add(asBits(dA[n][e]));
      }
    }
    const uint32_t bits = ptx::reduxMax(asBits(most));
    if (me.lane == 0) memory.largestOfDA[me.thread / 32] = bits;
  }
  /// The exponent of dA's scale. Notes whether an element is below kLeastExponent.
  SEQPAR_DEVICE static int scaleOf(const Smallest& smallest, Memory& memory, const Half& me) {
    constexpr int kLeast = -80, kMostOf = 48;  // keeps products with the images' scales in range
    uint32_t most = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < kWarps; i += 4) {
      uint32_t words[4];
      ptx::load(words, memory.largestOfDA + Memory::headOf(me) * kWarps + i);
      most = larger(most, larger(larger(words[0], words[1]), larger(words[2], words[3])));
    }
    int exponent = kMost - exponentAbove(asFloat(most));
    exponent = exponent < kLeast ? kLeast : exponent > kMostOf ? kMostOf : exponent;
    const bool wide = smallest.isBelow(kLeastExponent - exponent);
    if (!ptx::voteAll(!wide) && me.lane == 0) memory.wide[Memory::kWarps + me.thread / 32] = 1;
    return exponent;
  }

  /// This warp's tokens and 16 channels, starting at 16 * step, from the image of keys; as the left operand of a
  /// product in T.
  SEQPAR_DEVICE static void loadKeys(uint32_t (&image)[4], const T* keys, int step, const Half& me) {
    ptx::ldmatrixX4(image,
                    unitOf<kChunk>(keys, me.matrixRows().row(me.warpIndex * 16), step * 2 + me.matrixRows().half()));
  }
  SEQPAR_DEVICE static void convertKeys(uint32_t (&words)[4], const uint32_t (&image)[4], float factor) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      words[i] = ptx::pack<T>(ptx::lowOf<Fp16>(image[i]) * factor, ptx::highOf<Fp16>(image[i]) * factor);
    }
  }
  /// This warp's channels and 16 tokens, starting at 16 * step, in T with their remainders, from queries or their
  /// image.
  SEQPAR_DEVICE static void queriesOf(uint32_t (&words)[4], uint32_t (&rests)[4], const T* queries, int step,
                                      bool image, float factor, const Half& me) {
    const ptx::MatrixRowsAcross own{me.lane};
    const int row = own.row(), unit = me.warpIndex * 2 + own.half();
    ptx::ldmatrixX4Trans(words, queries + me.group * kTilePanel + (step * 16 + row) * kPanel + (unit ^ row % 8) * 8);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      rests[i] = 0;
      if (!image) continue;
      const float low = ptx::lowOf<Fp16>(words[i]) * factor, high = ptx::highOf<Fp16>(words[i]) * factor;
      words[i] = ptx::pack<T>(low, high);
      rests[i] = restOf<T>(low, high, words[i]);
    }
  }

 private:
  static constexpr int kWarps = Memory::kWarps / kHeads;  ///< of a head
  static constexpr uint32_t kAbsolute = 0x7fffffff;
  static constexpr int kLeastExponent = -16;  ///< from 2^-16, fp16 has at least the bits of bf16
  static constexpr int kLeastOfUnits = -19;   ///< of similar units, with the largest decays of a chunk with images
  Smallest queries, keys;                     ///< of a producer's rows

  SEQPAR_DEVICE static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
  /// Returns 0 for 0, which fits any scale.
  SEQPAR_DEVICE static int exponentOf(float x) { return x == 0 ? 0 : exponentAbove(x); }
};

}  // namespace seqpar::attn::backward::sm90
