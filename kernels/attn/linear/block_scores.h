// Scores within blocks of 16 tokens, for any channel decays, in TF32. A thread has some channels of a block's decays; a
// warp has 64 channels, and multiplies what its threads store.
//
// Pairs of tokens t > s are ordered by h, the highest bit where t and s differ: 8, 4, 2, 1. With decays relative to the
// last token of the lower half of 2h tokens, which contains s, the factors of q_t and k_s are products of decays: at
// most 1. One matrix x contains q of the upper halves and k of the lower ones; the scores are x x^T.
#pragma once

#include "kernels/arch/mma.h"
#include "kernels/arch/tma.h"
#include "kernels/attn/linear/between_tokens.h"
#include "kernels/attn/linear/decay.h"

namespace seqpar::attn {

/// Shared memory of a warp: x of a block, in rows of 64 channels in fp32, with the vectors of 16 bytes swizzled.
struct BlockMatrix {
  static constexpr int kChannels = 64, kRowBytes = 4 * kChannels, kBytes = kBlockTokens * kRowBytes;

  /// The offset of a channel of row t.
  SEQPAR_DEVICE static int offset(int t, int channel) { return t * kRowBytes + (4 * channel ^ t % 8 << 4); }
};

/// Scores of a block, or a part of their sum, in a warp: two accumulator tiles, without the pairs s > t.
struct BlockScores {
  using Tiles = float[2][4];
  Tiles of = {};

  /// Adds the products of x of N blocks, one after another in memory, for the pairs of h.
  template <int N>
  SEQPAR_DEVICE static void addLevel(BlockScores (&scores)[N], const char* x, int h, int lane) {
    // Operands of all steps would exceed the registers. Chains: of products that wait for each other.
    constexpr int kSteps = BlockMatrix::kChannels / 8, kTogether = 4, kChains = N > 1 ? 1 : 2;
    Tiles products[N][kChains] = {};
    const uint32_t row = ptx::sharedAddress(x) + BlockMatrix::offset(lane % 16, lane / 16 * 4);
    SEQPAR_ROLLED
    for (int first = 0; first < kSteps; first += kTogether) {
      SEQPAR_UNROLL
      for (int i = 0; i < kTogether * N; ++i) {
        const int step = first + i / N, block = i % N;
        uint32_t a[4];
        // x is aligned to kRowBytes.
        ptx::ldmatrixX4(a, (row ^ static_cast<uint32_t>(step) << 5) + block * BlockMatrix::kBytes);
        auto& to = products[block][i / N % kChains];
        ptx::mmaM16N8K8Tf32(to[0], a, a[0], a[2]);
        if (h < kBlockTokens / 2) ptx::mmaM16N8K8Tf32(to[1], a, a[1], a[3]);
      }
    }
    SEQPAR_UNROLL
    for (int block = 0; block < N; ++block) {
      if constexpr (kChains > 1) {
        SEQPAR_UNROLL
        for (int i = 0; i < 8; ++i) products[block][0][i / 4][i % 4] += products[block][1][i / 4][i % 4];
      }
      scores[block].take(products[block][0], h, lane);
    }
  }
  SEQPAR_DEVICE void take(const Tiles& products, int h, int lane) {
    SEQPAR_UNROLL
    for (int e = 0; e < 2; ++e) {
      if (h == kBlockTokens / 2) {  // rows 8 to 15, columns 0 to 7
        of[0][2 + e] = products[0][2 + e];
        continue;
      }
      const int t = lane / 4, s = lane % 4 * 2 + e;  // of eight tokens
      const bool takes = t > s && differAt(t, s, h);
      of[0][e] = takes ? products[0][e] : of[0][e];
      of[1][2 + e] = takes ? products[1][2 + e] : of[1][2 + e];
    }
  }
  /// Sets the products of tokens with themselves.
  SEQPAR_DEVICE void setSelf(const Tiles& products, int lane) {
    SEQPAR_UNROLL
    for (int e = 0; e < 2; ++e) {
      const bool takes = lane / 4 == lane % 4 * 2 + e;
      of[0][e] = takes ? products[0][e] : 0.f;
      of[1][2 + e] = takes ? products[1][2 + e] : 0.f;
    }
  }
};

/// Tensor cores ignore the lower 13 bits of elements in TF32. A product is multiplied by this first, so that errors
/// have a mean of 0; elements of bf16 times this are not changed.
constexpr float kTf32Rounding = 1 + 0.72F / 2048;

/// Calls put(t, factors) for the tokens of a block, which multiply their query (t & H) or key: the products of the
/// decays between it and the last token of the lower half of 2 H tokens, times kTf32Rounding if they are not 1. The
/// order is that of groups of 4 tokens. Channels: of some decays, with filled(value) and multiply(a, b).
template <int H, class Channels, class Decay, class Put>
SEQPAR_DEVICE void eachFactor(const Decay* decays, const Put& put) {
  // Opaque, so that the compiler does not keep products for other H.
  const float rounding = asFloat(static_cast<uint32_t>(ptx::opaque(static_cast<int>(asBits(kTf32Rounding)))));
  const auto lower = [&](int from, int to) {
    put(from, Channels::filled(1));
    Decay factors = Channels::filled(rounding);
    SEQPAR_UNROLL
    for (int s = from - 1; s >= to; --s) {
      factors = Channels::multiply(factors, decays[s + 1]);
      put(s, factors);
    }
  };
  const auto upper = [&](int from, int to) {
    Decay factors = Channels::filled(rounding);
    SEQPAR_UNROLL
    for (int t = from; t <= to; ++t) {
      factors = Channels::multiply(factors, decays[t]);
      put(t, factors);
    }
  };
  SEQPAR_UNROLL
  for (int first = 0; first < kBlockTokens; first += 2 * H) {
    lower(first + H - 1, first);
    upper(first + H, first + 2 * H - 1);
  }
}

}  // namespace seqpar::attn
