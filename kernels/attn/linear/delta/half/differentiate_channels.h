// The parts of Differentiate for decays of channels.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate.h"

namespace seqpar::attn::delta::half {

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::throughChannels() {
  const ChannelMemory& m = memory_.channels;
  const uint16_t *const ofScores = memory_.dX, *const ofKeys = memory_.dValues;
  const int block = row_ / kBlock, channel = half_ * 64;
  decayChannels<T>(m, task_, batch_, chunk_, head_, memory_.keys, memory_.queries, nullptr);
  storeScores([](int, int, float x) { return x; });
  decayRows([&](int t, int c) { return m.run[t * kKeys + c] * totals(0, block, c); },
            [&](int t, int c) { return m.suffix[t * kKeys + c] * totals(block + 1, kBlocks, c); });
  sumEnds();
  ptx::syncthreads();
  float part[8][4];
  if (block > 0) {
    const AsRows near{m.near + nearRow(block) * kKeyStride, kKeyStride};
    multiply<T>(part, InRows{ofScores, kSquareStride}, row_, near, channel, 0, row_);
    addDecayed(dq_, part, [&](int t, int c) { return m.run[t * kKeys + c]; });
    multiply<T>(part, InRows{ofKeys, kSquareStride}, row_, near, channel, 0, row_);
    addDecayed(dRow_, part, [&](int t, int c) { return m.run[t * kKeys + c]; });
  }
  for (int n = block + 1; n < kBlocks; ++n) {
    const int first = n * kBlock, last = first + kBlock;
    multiply<T>(part, AsRows{ofScores, kSquareStride}, row_, AsRows{m.qNear, kKeyStride}, channel, first, last);
    add<T>(part, AsRows{ofKeys, kSquareStride}, row_, AsRows{m.kNear, kKeyStride}, channel, first, last);
    addDecayed(dColumn_, part, [&](int t, int c) { return m.suffix[t * kKeys + c] * totals(block + 1, n, c); });
  }
  if (!isSteep(m, block)) throughBlock(ofScores, ofKeys);
  bool steep = false;
  for (int n = 0; n < kBlocks; ++n) steep = steep || isSteep(m, n);
  if (steep) {
    float* const sums = reinterpret_cast<float*>(m.near);  // with kNear and qNear behind it
    const uint16_t *const keys = memory_.keys, *const queries = memory_.queries;
    const auto through = [&](float(&c)[8][4], const SteepSum& sum) {
      ptx::syncthreads();
      sumSteep<T>(sum, m, task_, batch_, chunk_, head_);
      ptx::syncthreads();
      if (!isSteep(m, block)) return;
      eachPair(c, row_, channel, [&](int t, int n, float& x, float& y) {
        x += sums[t * kKeys + n];
        y += sums[t * kKeys + n + 1];
      });
    };
    through(dq_, {true, ofScores, keys, nullptr, nullptr, sums});
    through(dRow_, {true, ofKeys, keys, nullptr, nullptr, sums});
    through(dColumn_, {false, ofScores, queries, ofKeys, keys, sums});
  }
  ptx::syncthreads();
  eachPair(dq_, row_, channel, [&](int t, int c, float x, float y) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(memory_.queries + t * kKeyStride + c);
    ptx::storePair(m.run + t * kKeys + c, ptx::lowOf<T>(pair) * x, ptx::highOf<T>(pair) * y);
  });
  const auto addKeys = [&](float(&gradients)[8][4], float sign) {
    eachPair(gradients, row_, channel, [&](int t, int c, float x, float y) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(memory_.keys + t * kKeyStride + c);
      float* const to = m.run + t * kKeys + c;
      ptx::storePair(to, to[0] + sign * ptx::lowOf<T>(pair) * x, to[1] + sign * ptx::highOf<T>(pair) * y);
    });
  };
  addKeys(dRow_, 1);
  addKeys(dColumn_, -1);
  addColumns();
  ptx::syncthreads();
}

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::sumEnds() {
  const int lane = ptx::thread() % 32, t = row_ + lane / 4, first = half_ * 64 + lane % 4 * 2;
  SEQPAR_UNROLL
  for (int n = 0; n < 8; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int c = first + 8 * n + e;
      float sum = toFloat<T>(memory_.keys[t * kKeyStride + c]) * dColumn_[n][e] +
                  toFloat<T>(memory_.keys[(t + 8) * kKeyStride + c]) * dColumn_[n][e + 2];
      for (int mask = 4; mask < 32; mask *= 2) sum += ptx::shflXor(sum, mask);
      if (lane < 4) memory_.partialEnds[row_ / kBlock * kKeys + c] = sum;
    }
  }
}

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::throughBlock(const uint16_t* ofScores, const uint16_t* ofKeys) {
  const int lane = ptx::thread() % 32, g = lane / 4, p = lane % 4;
  const Within within{memory_.channels};
  uint32_t rows[2][2][4], columns[2][2][4];  // of scores and of keys, of 8 terms each
  SEQPAR_UNROLL
  for (int k = 0; k < 2; ++k) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int at = row_ + g + i % 2 * 8, term = row_ + 8 * k + p + i / 2 * 4;
      SEQPAR_UNROLL
      for (int s = 0; s < 2; ++s) {
        const uint16_t* const from = s == 0 ? ofScores : ofKeys;
        rows[s][k][i] = ptx::roundToTf32(toFloat<T>(from[at * kSquareStride + term]));
        columns[s][k][i] = ptx::roundToTf32(toFloat<T>(from[term * kSquareStride + at]));
      }
    }
  }
  SEQPAR_UNROLL
  for (int n = 0; n < 8; ++n) {
    const int c = half_ * 64 + 8 * n + g, own = half_ * 64 + 8 * n + 2 * p;
    float dq[4] = {}, dRow[4] = {}, dColumn[4] = {};
    SEQPAR_UNROLL
    for (int k = 0; k < 2; ++k) {
      const int t = row_ + 8 * k + p;
      const uint32_t x = within.column<T>(memory_.keys, t, c), y = within.column<T>(memory_.keys, t + 4, c);
      ptx::mmaM16N8K8Tf32(dq, rows[0][k], x, y);
      ptx::mmaM16N8K8Tf32(dRow, rows[1][k], x, y);
      ptx::mmaM16N8K8Tf32(dColumn, columns[0][k], within.row<T>(memory_.queries, t, c),
                          within.row<T>(memory_.queries, t + 4, c));
      ptx::mmaM16N8K8Tf32(dColumn, columns[1][k], within.row<T>(memory_.keys, t, c),
                          within.row<T>(memory_.keys, t + 4, c));
    }
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int t = row_ + g + e / 2 * 8;
      const float run = memory_.channels.run[t * kKeys + own + e % 2];
      dq_[n][e] += run * dq[e];
      dRow_[n][e] += run * dRow[e];
      dColumn_[n][e] += within.inverse(t, own + e % 2) * dColumn[e];
    }
  }
}

template <class T, bool kChannel>
SEQPAR_DEVICE void Differentiate<T, kChannel>::ofChannelGates() {
  const int c = ptx::thread();
  if (task_.dGates.data == nullptr || c >= task_.dk) return;
  const ChannelMemory& m = memory_.channels;
  float run = forgetting(totals(0, kBlocks, c), memory_.boundary[c]);
  for (int n = 0; n < kBlocks; ++n) run += memory_.partialEnds[n * kKeys + c];
  for (int t = kRows; t-- > 0;) {
    run += m.run[t * kKeys + c];
    if (channelDecay(task_, batch_, chunk_, head_, t, c) == 0) run = 0;
    if (t >= chunk_.rows) continue;
    storeNumber(task_.dGates.data, task_.gateType, rowOf(task_.dGates, batch_, chunk_.first + t, head_) + c, run);
  }
}

}  // namespace seqpar::attn::delta::half
