// dq, dk and terms of the gates' gradients of a chunk with strong channel decays, 16 channels at a time
// (channel_within_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/channel_within_memory_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// The products of two pairs of bf16.
SEQPAR_DEVICE uint32_t multiplyPairs(uint32_t a, uint32_t b) {
#ifdef __CUDACC__
  uint32_t result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  return ptx::pack<Bf16>(ptx::lowOf<Bf16>(a) * ptx::lowOf<Bf16>(b), ptx::highOf<Bf16>(a) * ptx::highOf<Bf16>(b));
#endif
}

/// A warp's tokens and channels. Words and pairs: of rows row and row + 8, and of these in the next 8 channels.
template <class T>
class ChannelLevels {
 public:
  using Memory = ChannelWithinMemory<T>;
  using Quad = float[4];

  SEQPAR_DEVICE ChannelLevels(Memory& memory, float scale, int phase) : memory_(memory), scale_(scale), phase_(phase) {}

  /// Stores dq and dk in place of the products with states, and terms in place of sums. `carry`: sums of the terms of k
  /// of these products over the strip; lane 4 i + c has channels 16 i + 2 c, + 1, + 8 and + 9.
  SEQPAR_DEVICE void run(Quad& carry) const {
    Words within[4];  // dA of levels 8 to 1 in the strip
    loadWithin(within);
    SEQPAR_ROLLED
    for (int index = 0; index < kPanel / kStrip; ++index) multiply(within, carry, index);
  }

 private:
  using Pairs = float[4][2];
  using Tiles = float[2][4];
  using Words = uint32_t[4];
  static constexpr int kStride = Memory::kStride;
  /// Of 16 channels.
  struct Step {
    Pairs sums, dq, dk, terms;
    Words q, k;
    const float* logs;  ///< the thread's channels of the strip's first row
  };

  SEQPAR_DEVICE void loadWithin(Words (&within)[4]) const {
    Words own;
    ptx::ldmatrixX4(own, me_.at(memory_.scores, me_.warp, me_.warp * 2));
    const int distance = me_.g ^ me_.c * 2;  // of even keys in the same 8 tokens
    const auto of = [&](int level, uint32_t word) {
      if (level == 4) return distance >= 4 ? word : 0u;
      if (level == 2) return distance / 2 == 1 ? word : 0u;
      return distance / 2 != 0 ? 0u : distance == 0 ? word & 0xffff0000u : word & 0xffffu;
    };
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool outer = i == 1 || i == 2;
      within[0][i] = outer ? own[i] : 0u;
      SEQPAR_UNROLL
      for (int n = 1; n < 4; ++n) within[n][i] = outer ? 0u : of(8 >> n, own[i]);
    }
  }
  SEQPAR_DEVICE void multiply(const Words (&within)[4], Quad& carry, int index) const {
    const int unit = index * 2, panel = me_.panel, warp = me_.warp;
    Step step;
    step.logs = memory_.sums[panel] + warp * kStrip * kStride + unit * 8 + me_.c * 2;
    ptx::ldmatrixX4(step.q, me_.at(memory_.queries + panel * kTilePanel, warp, unit));
    ptx::ldmatrixX4(step.k, me_.at(memory_.keys + panel * kTilePanel, warp, unit));
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      ptx::loadPair(step.logs + me_.g * kStride + ofWord(i), step.sums[i][0], step.sums[i][1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) step.dq[i][e] = step.dk[i][e] = step.terms[i][e] = 0;
    }
    multiplyOthers(step);
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) multiplyWithin(step, within[n], 8 >> n);
    finish(step, carry, index);
    warpgroup::sync(panel);  // this step's sums and x are not read any more
    float* const to = memory_.sums[panel] + me_.row * kStride + unit * 8 + me_.c * 2;
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) ptx::storePair(to + ofWord(i), step.terms[i][0], step.terms[i][1]);
  }
  SEQPAR_DEVICE static constexpr int ofWord(int i) { return i % 2 * 8 * kStride + i / 2 * 8; }
  /// Calls act(strip, n, e, log2-decay of the strip) for channels e of tile n.
  template <class Act>
  SEQPAR_DEVICE void eachTotal(const Step& step, const Act& act) const {
    const float* const first = step.logs - me_.warp * kStrip * kStride;
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int strip = 0; strip < kChunk / kStrip; ++strip) {
        float pair[2];
        ptx::loadPair(first + (strip * kStrip + kStrip - 1) * kStride + n * 8, pair[0], pair[1]);
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) act(strip, n, e, pair[e]);
      }
    }
  }
  SEQPAR_DEVICE static float decayAt(float sum, float border) { return ptx::ex2ApproxOfDecay(-fabsf(sum - border)); }
  SEQPAR_DEVICE static uint32_t multiplied(const float (&by)[2], uint32_t word) {
    return multiplyPairs(ptx::pack<T>(by[0], by[1]), word);
  }

  /// Levels 16 and 32.
  SEQPAR_DEVICE void multiplyOthers(Step& step) const {
    const int warp = me_.warp;
    float borders[2][2][2] = {};  // from the strip's start
    eachTotal(step, [&](int strip, int n, int e, float total) {
      float &near = borders[0][n][e], &far = borders[1][n][e];
      if (strip == warp && warp % 2 == 0) near = total;
      if (strip == 0 && warp == 0) far += total;
      if (strip == 1 && warp < 2) far += total;
      if (strip == 2 && warp == 3) far -= total;
    });
    const bool areQueries[2] = {warp % 2 != 0, warp >= 2};
    Words x[2];
    Pairs decays[2];
    SEQPAR_UNROLL
    for (int level = 0; level < 2; ++level) {
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) decays[level][i][e] = decayAt(step.sums[i][e], borders[level][i / 2][e]);
        x[level][i] = multiplied(decays[level][i], areQueries[level] ? step.q[i] : step.k[i]);
      }
      ptx::stmatrixX4(decayedAt(level, warp), x[level]);
    }
    warpgroup::sync(me_.panel);
    SEQPAR_UNROLL
    for (int level = 0; level < 2; ++level) {
      Tiles dx = {};
      const int other = level == 0 ? warp ^ 1 : warp / 2 * 2 ^ 2;
      addOther(dx, level, other);
      if (level == 1) addOther(dx, level, other + 1);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        addWord(step, i, x[level][i], decays[level][i], dx[i / 2] + i % 2 * 2, areQueries[level]);
      }
    }
  }
  /// The lane's row of x of a strip in shared memory.
  SEQPAR_DEVICE T* decayedAt(int level, int strip) const {
    const ptx::MatrixRows own{me_.lane};
    const int r = own.row(strip * kStrip);
    return memory_.decayed[me_.panel][level] + r * kStrip + (own.half() ^ r / 4 % 2) * 8;
  }
  /// Adds dA x of another strip.
  SEQPAR_DEVICE void addOther(Tiles& dx, int level, int other) const {
    Words scores, x;
    ptx::ldmatrixX4(scores, me_.at(memory_.scores, me_.warp, other * 2));
    ptx::ldmatrixX4Trans(x, decayedAt(level, other));
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) ptx::mmaM16N8K16<T>(dx[n], scores, x[2 * n], x[2 * n + 1]);
  }
  SEQPAR_DEVICE static void addWord(Step& step, int i, uint32_t x, const float (&decays)[2], const float* dx,
                                    bool query) {
    const uint32_t word = x ^ (query ? 0u : 0x80008000u);
    step.terms[i][0] += ptx::lowOf<T>(word) * dx[0];
    step.terms[i][1] += ptx::highOf<T>(word) * dx[1];
    SEQPAR_UNROLL
    for (int e = 0; e < 2; ++e) {
      if (query) step.dq[i][e] += decays[e] * dx[e];
      if (!query) step.dk[i][e] += decays[e] * dx[e];
    }
  }
  /// A level of 8 or less. `scores`: dA of its pairs.
  SEQPAR_DEVICE void multiplyWithin(Step& step, const Words& scores, int level) const {
    const float* const border = step.logs + ((me_.g & ~(2 * level - 1)) + level - 1) * kStride;
    Pairs decays;
    Words x;
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      float pair[2];
      ptx::loadPair(border + (level == 8 ? i / 2 * 8 : ofWord(i)), pair[0], pair[1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) decays[i][e] = decayAt(step.sums[i][e], pair[e]);
      x[i] = multiplied(decays[i], isQuery(i, level) ? step.q[i] : step.k[i]);
    }
    Tiles dx = {};
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      ptx::mmaM16N8K16<T>(dx[n], scores, ptx::movmatrixTrans(x[2 * n]), ptx::movmatrixTrans(x[2 * n + 1]));
    }
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) addWord(step, i, x[i], decays[i], dx[i / 2] + i % 2 * 2, isQuery(i, level));
  }
  SEQPAR_DEVICE bool isQuery(int word, int level) const { return level == 8 ? word % 2 != 0 : (me_.g & level) != 0; }
  /// Adds products of a token with itself and those with states, and stores dq and dk.
  SEQPAR_DEVICE void finish(Step& step, Quad& carry, int index) const {
    const int unit = index * 2, panel = me_.panel;
    if (index == 0) ptx::mbarrierWaitParity(ptx::sharedAddress(&memory_.states), phase_);
    Words ofQuery, ofKey, dq, dk;
    T* const queries = me_.at(memory_.results[0] + panel * kTilePanel, me_.warp, unit);
    T* const keys = me_.at(memory_.results[1] + panel * kTilePanel, me_.warp, unit);
    ptx::ldmatrixX4(ofQuery, queries);
    ptx::ldmatrixX4(ofKey, keys);
    float sums[4] = {}, before[2][2] = {}, after[2][2] = {};  // decays before the strip, and from its start
    eachTotal(step, [&](int strip, int n, int e, float total) { (strip < me_.warp ? before : after)[n][e] += total; });
    const float own[2] = {memory_.diagonal[me_.row], memory_.diagonal[me_.row + 8]};
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const auto part = [&](uint32_t word) { return e == 0 ? ptx::lowOf<T>(word) : ptx::highOf<T>(word); };
        const float sum = step.sums[i][e], q = part(step.q[i]), k = part(step.k[i]);
        const float fromStart = decayOf(sum + before[i / 2][e]), toEnd = decayOf(after[i / 2][e] - sum);
        const float query = scale_ * times(fromStart, part(ofQuery[i])), key = times(toEnd, part(ofKey[i]));
        const float ofKeys = k * key;
        step.terms[i][e] += q * query - ofKeys;
        sums[i / 2 * 2 + e] += ofKeys;
        step.dq[i][e] += query + own[i % 2] * k;
        step.dk[i][e] += key + own[i % 2] * q;
      }
      dq[i] = ptx::pack<T>(step.dq[i][0], step.dq[i][1]);
      dk[i] = ptx::pack<T>(step.dk[i][0], step.dk[i][1]);
    }
    ptx::stmatrixX4(queries, dq);
    ptx::stmatrixX4(keys, dk);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      SEQPAR_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) sums[i] += ptx::shflXor(sums[i], mask);
      if (me_.g == index) carry[i] = sums[i];
    }
  }

  Memory& memory_;
  StripPlace me_;
  float scale_;
  int phase_;
};

}  // namespace seqpar::attn::backward::sm90
