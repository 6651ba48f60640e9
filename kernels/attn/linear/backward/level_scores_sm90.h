// Scores of a chunk with strong channel decays on sm_90a: A = q k^T with the decays from each key to the query. Tokens
// are combined at six levels (decay.h): at level n, of queries with bit n set, and keys with bit n not set, in
// the same 2 n tokens. They have decays from and to the border between them, the start and the end of their own n
// tokens, so that all exponents are at most 0. From level to level half of them are multiplied by another decay, and
// rounded to T again.
#pragma once

#include "kernels/attn/linear/backward/tiles_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// Of a CTA of two warpgroups, which have 32 keys each. A thread has two channels of kTokens tokens, `slice`. Memory:
/// queries and keys of kChannels channels, and sums of log2-decays of each slice.
template <class T, class Memory, class Record>
class LevelScores {
 public:
  static constexpr int kChannels = Memory::kChannels, kTokens = kChunk / Memory::kSlices;
  using Pair = float[2];
  using Sums = Pair[kTokens];

  SEQPAR_DEVICE LevelScores(Memory& memory, Record& record, float scale, int slice, int channel)
      : memory_(memory), record_(record), scale_(scale), slice_(slice), channel_(channel) {}

  /// `sums`: of the log2-decays of the thread's tokens. Scores that are not computed are 0 already. Queries and keys
  /// are overwritten.
  SEQPAR_DEVICE void run(const Sums& sums) const {
    multiply<0>();
    runLevel<1>(sums);
    runLevel<2>(sums);
    runLevel<4>(sums);
    runLevel<8>(sums);
    runLevel<16>(sums);
    runLevel<32>(sums);
  }

 private:
  template <int kLevel>
  SEQPAR_DEVICE void runLevel(const Sums& sums) const {
    ptx::syncthreads();
    decay<kLevel>(sums);
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    multiply<kLevel>();
  }
  /// Multiplies this thread's queries and keys, which have decays from the start and to the end of their kLevel / 2
  /// tokens, by those of the other half of their kLevel tokens.
  template <int kLevel>
  SEQPAR_DEVICE void decay(const Sums& sums) const {
    constexpr int kHalf = kLevel / 2;
    constexpr bool kWithin = kLevel <= kTokens;  // of a slice; otherwise a half is a slice
    static_assert(kWithin || kHalf == kTokens);
    Pair other = {0, 0};
    if (!kWithin) ptx::loadPair(memory_.totals[slice_ ^ 1] + channel_, other[0], other[1]);
    const int panel = channel_ / kPanel * kTilePanel, unit = channel_ % kPanel / 8;
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const int row = slice_ * kTokens + t, at = panel + row * kPanel + (unit ^ t % 8) * 8 + channel_ % 8;
      if (t % 8 == 0) ptx::syncwarp();  // fewer loads at once, for fewer registers
      const bool query = kLevel == 1 || ((kWithin ? t : slice_ * kTokens) & kHalf) != 0;
      // The other half's tokens: after `before`, to `last`.
      const int first = t & ~(kLevel - 1), before = (query ? first : first + kHalf) - 1,
                last = !kWithin      ? 0
                       : kLevel == 1 ? t
                                     : before + kHalf;
      uint32_t& word = *reinterpret_cast<uint32_t*>((query ? memory_.queries : memory_.keys) + at);
      float by[2];
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        by[e] = decayOf(kWithin ? sums[last][e] - (before < 0 ? 0.f : sums[before < 0 ? 0 : before][e]) : other[e]);
      }
      word = ptx::pack<T>(by[0] * ptx::lowOf<T>(word), by[1] * ptx::highOf<T>(word));
    }
  }
  /// Computes the scores of a level, or of the diagonal (0).
  template <int kLevel>
  SEQPAR_DEVICE void multiply() const {
    constexpr int kKeys = kChunk / 2;
    const Place<2> me = me_.opaque();
    float scores[kKeys / 8][4];
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kChannels / 16>(
        scores, Operand{memory_.queries, kTilePanelBytes}, kChunk,
        Operand{memory_.keys + me.group * kKeys * kPanel, kTilePanelBytes}, kChunk, false);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(scores);
    SEQPAR_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int query = me.row + r * 8, key = me.group * kKeys + n * 8 + me.c * 2;  // and the next one
        const float low = scale_ * scores[n][r * 2], high = scale_ * scores[n][r * 2 + 1];
        if (kLevel > 1) {
          if (key > query || (key ^ query) / (kLevel > 1 ? kLevel : 1) != 1) continue;
          *reinterpret_cast<uint32_t*>(record_.scoreAt(query, key)) = ptx::pack<T>(low, high);
        } else if (key / 2 == query / 2) {
          const bool odd = query % 2 != 0;
          if (kLevel == 1 && odd) *record_.scoreAt(query, key) = static_cast<uint16_t>(ptx::pack<T>(low, 0));
          if (kLevel == 0) *record_.scoreAt(query, query) = static_cast<uint16_t>(ptx::pack<T>(odd ? high : low, 0));
        }
      }
    }
  }

  Memory& memory_;
  Record& record_;
  Place<2> me_;
  float scale_;
  int slice_, channel_;
};

}  // namespace seqpar::attn::backward::sm90
