// Scores within blocks of 16 tokens of a chunk, for any channel decays. Each of the four warps has one block.
//
// Pairs of tokens t > s are ordered by h, the highest bit where t and s differ: 8, 4, 2, 1. With decays relative to the
// last token of the lower half of 2h tokens, which contains s, the factors of q_t and k_s are at most 1. One matrix x
// contains q of the upper halves and k of the lower ones; the scores are x x^T. x is T and a remainder in T.
#pragma once

#include "kernels/attn/linear/between_tokens.h"
#include "kernels/attn/linear/forward_sm90/outputs_shared_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// Steps: of 16 channels.
template <class T, int Steps>
class ExactScores {
 public:
  /// `logs`: the base-2 logarithms of the decays, in fp16, in the layout of the keys. `head`: of two, each in a panel
  /// of the tiles. `thread`: opaque, so that nothing derived from it is kept in registers while chunks are not exact.
  /// `inverses`: of raiseRows(), for the head.
  SEQPAR_DEVICE ExactScores(char* stage, const char* logs, float* inverses, int head, int thread)
      : stage_(ptx::sharedAddress(stage) + head * kTileBytes),
        logs_(ptx::sharedAddress(logs) + head * kTileBytes),
        inverses_(inverses),
        lane_(thread % 32),
        block_(thread / 32 % 4) {}

  SEQPAR_DEVICE void run() const {
    float scores[2][4];
    multiplySelf(scores);
#pragma unroll 1
    for (int h = kBlockTokens / 2; h > 0; h /= 2) multiply(scores, h);
    put(scores);
  }

 private:
  /// The scores of each token with itself.
  SEQPAR_DEVICE void multiplySelf(float (&scores)[2][4]) const {
    float products[2][4] = {};
#pragma unroll 2
    for (int step = 0; step < Steps; ++step) {
      uint32_t queries[4], keys[4];
      load(queries, stage_ + OutputsShared::kQueries, step);
      load(keys, stage_ + OutputsShared::kKeys, step);
      Numbers<T>::multiply(products[0], queries, keys[0], keys[2]);
      Numbers<T>::multiply(products[1], queries, keys[1], keys[3]);
    }
    each([&](int n, int e, int t, int s) { scores[n][e] = t == s ? products[n][e] : 0; });
  }
  /// The scores of the pairs of h.
  SEQPAR_DEVICE void multiply(float (&scores)[2][4], int h) const {
    const int row = lane_ / 4;
    const bool upper[2] = {(row & h) != 0, ((row + 8) & h) != 0};
    uint32_t ones[4];
    selectBetween(ones, anchorOf(row, h), anchorOf(row + 8, h), lane_);
    float products[2][4] = {};
#pragma unroll 2
    for (int step = 0; step < Steps; ++step) {
      uint32_t queries[4], keys[4], logs[4], x[4], rests[4];
      load(queries, stage_ + OutputsShared::kQueries, step);
      load(keys, stage_ + OutputsShared::kKeys, step);
      ptx::ldmatrixX4Trans(logs, addressOf(logs_, step));
      float sums[2][4] = {};
      ptx::mmaM16N8K16<Fp16>(sums[0], ones, logs[0], logs[1]);
      ptx::mmaM16N8K16<Fp16>(sums[1], ones, logs[2], logs[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const sum = sums[i / 2] + i % 2 * 2;
        const float2 from = Numbers<T>::unpack(upper[i % 2] ? queries[i] : keys[i]);
        const float low = from.x * ptx::ex2Approx(fminf(sum[0], 0)), high = from.y * ptx::ex2Approx(fminf(sum[1], 0));
        x[i] = Numbers<T>::pack(low, high);
        const float2 rounded = Numbers<T>::unpack(x[i]);
        rests[i] = Numbers<T>::pack(low - rounded.x, high - rounded.y);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        Numbers<T>::multiply(products[n], x, x[n], x[n + 2]);
        Numbers<T>::multiply(products[n], rests, x[n], x[n + 2]);
        Numbers<T>::multiply(products[n], x, rests[n], rests[n + 2]);
      }
    }
    each([&](int n, int e, int t, int s) {
      if (t > s && differAt(t, s, h)) scores[n][e] = products[n][e];
    });
  }
  /// Calls act(n, e, t, s) for the elements of a block in accumulators: query t, key s.
  template <class Act>
  SEQPAR_DEVICE void each(const Act& act) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) act(n, e, lane_ / 4 + e / 2 * 8, n * 8 + lane_ % 4 * 2 + e % 2);
    }
  }

  /// This lane's row for ldmatrix of the block's tokens and 16 channels.
  SEQPAR_DEVICE uint32_t addressOf(uint32_t matrix, int step) const {
    return matrix + step / 4 * kTileBytes +
           swizzled(block_ * kBlockTokens + lane_ % 16, step % 4 * kNextStepOfRows + lane_ / 16 * 16);
  }
  SEQPAR_DEVICE void load(uint32_t (&words)[4], uint32_t matrix, int step) const {
    ptx::ldmatrixX4(words, addressOf(matrix, step));
  }
  SEQPAR_DEVICE void put(float (&scores)[2][4]) const {
    if constexpr (Numbers<T>::kRaises) raiseRows<T>(scores, inverses_ + block_ * kBlockTokens, 1);
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = Numbers<T>::pack(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
    ptx::stmatrixX4(stage_ + OutputsShared::kScores +
                        swizzled(block_ * kBlockTokens + lane_ % 16, block_ * kNextStepOfRows + lane_ / 16 * 16),
                    words);
  }

  uint32_t stage_, logs_;
  float* inverses_;  ///< of raiseRows()
  int lane_, block_;
};

}  // namespace seqpar::attn::forward_sm90
