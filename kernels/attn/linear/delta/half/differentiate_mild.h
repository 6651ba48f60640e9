// Differentiate for mild decays of channels, bf16 tensors: operands of fp16, times powers of 2.
//
// Rows have the states' part, which is decayed block by block up to the end of the row's own block, and each block adds
// its scores times keys decayed to its end; then the decay from there back to the row is a quotient. Columns have the
// same in the other direction, with rows decayed from the start of their block.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate_channels.h"

namespace seqpar::attn::delta::half {

template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughMildChannels(HalfBlockDecays& decays,
                                                                           const Scales& scales) {
  decayChannels<true>(decays, scales.rows);
  storeChannelScores<Fp16>(scales.scores);
  ptx::syncthreads();
  throughMildRows(scales);
  throughMildColumns(scales);
  const int block = row_ / kBlock;
  storeTerms([&](int t, int c, int n, int e) {
    float run[2], total[2];
    ptx::loadPair(memory_.run + t * kRunStride + c, run[0], run[1]);
    ptx::loadPair(memory_.totals + block * kKeys + c, total[0], total[1]);
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float ofRows = scales.down * run[i] * ptx::rcpApprox(total[i]);
      dq_[n][e + i] *= ofRows;
      dRow_[n][e + i] *= ofRows;
      dColumn_[n][e + i] *= scales.down * ptx::rcpApprox(run[i]);
    }
  });
  ptx::syncthreads();
}

/// c *= the decay of a block.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::decayBlock(float (&c)[4][4], int block, int lane) const {
  const int first = ptx::AccumulatorLayout{lane}.column(channel_);
  SEQPAR_UNROLL
  for (int n = 0; n < 4; ++n) {
    float total[2];
    ptx::loadPair(memory_.totals + block * kKeys + first + 8 * n, total[0], total[1]);
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) c[n][e] *= total[e % 2];
  }
}

template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughMildRows(const Scales& scales) {
  const int lane = threadAgain() % 32, t = ptx::AccumulatorLayout{lane}.row(row_);
  const float up = scales.rows * scales.scores, ofQueries = up * task_.scale;
  const float betas[2] = {-up * memory_.beta[t], -up * memory_.beta[t + 8]};
  SEQPAR_UNROLL
  for (int n = 0; n < 4; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) {
      dq_[n][e] *= ofQueries;
      dRow_[n][e] *= betas[e / 2];
      dColumn_[n][e] *= up;
    }
  }
  const KeyRows kEnd{memory_.near};
  SEQPAR_ROLLED
  for (int k = 0; k <= row_; k += kBlock) {
    uint32_t x[4], y[4];
    loadLeft<true>(x, ofScores(), row_, k, lane);
    loadLeft<true>(y, ofKeys(), row_, k, lane);
    decayBlock(dq_, k / kBlock, lane);
    decayBlock(dRow_, k / kBlock, lane);
    accumulateBoth<Fp16, false>(dq_, x, dRow_, y, kEnd, channel_, k, lane);
  }
}

template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughMildColumns(const Scales& scales) {
  const int lane = threadAgain() % 32, block = row_ / kBlock, first = ptx::AccumulatorLayout{lane}.column(channel_);
  const KeyRows kEnd{memory_.near}, qNear{memory_.qNear}, kNear{memory_.kNear};
  float ends[4][2] = {};
  eachKey(kEnd, [&](int n, int e, uint32_t key) {
    ends[n][0] += ptx::lowOf<Fp16>(key) * dColumn_[n][e];
    ends[n][1] += ptx::highOf<Fp16>(key) * dColumn_[n][e + 1];
  });
  const float down = inverseOfPower(scales.rows) * scales.down;
  SEQPAR_UNROLL
  for (int n = 0; n < 4; ++n) {
    float after[2];
    ptx::loadPair(memory_.after + block * kKeys + first + 8 * n, after[0], after[1]);
    ends[n][0] *= down * after[0];
    ends[n][1] *= down * after[1];
  }
  sumEnds(ends);
  SEQPAR_ROLLED
  for (int k = kRows - kBlock; k >= row_; k -= kBlock) {
    uint32_t x[4], y[4];
    loadLeft<false>(x, ofScores(), row_, k, lane);
    loadLeft<false>(y, ofKeys(), row_, k, lane);
    decayBlock(dColumn_, k / kBlock, lane);
    accumulate<Fp16, false>(dColumn_, x, qNear, channel_, k, 0, 4, lane);
    accumulate<Fp16, false>(dColumn_, y, kNear, channel_, k, 0, 4, lane);
  }
}

}  // namespace seqpar::attn::delta::half
