// The parts of Differentiate with states and values.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate.h"

namespace seqpar::attn::delta::half {

/// Gradients of qIn, kIn and kOut, and of both kinds of scores.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughStates([[maybe_unused]] ValuePairs& values) {
  clear(dq_);
  clear(dRow_);
  clear(dColumn_);
  clear(ofKeys_);
  clear(ofScores_);
  float boundary[2] = {};
  if constexpr (kWgmma) {
    SEQPAR_ROLLED
    for (int first = 0; first < columns_; first += kColumns) {
      throughColumnsSm90(first, stage(first), values, boundary);
    }
  } else {
    for (int first = 0; first < columns_; first += 2 * kColumns) {
      throughColumns(first, stage(0), boundary);
      if (first + kColumns < columns_) throughColumns(first + kColumns, stage(kColumns), boundary);
    }
  }
  ptx::cpAsyncWaitGroup<0>();
  const int lane = threadAgain() % 32, g = lane / 4, channel = warp_ / kHalves * kBlock + g;
  if (lane % 4 != g / 2) return;
  float* const to = memory_.boundary + warp_ % kHalves * kKeys;
  to[channel] = boundary[0];
  to[channel + 8] = boundary[1];
}
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughColumns(int first, const Stage& s, float (&boundary)[2]) {
  const int column = quarter_ * kBlock;
  const SquareRows dX{memory_.dX}, dValues{memory_.dValues};
  ptx::cpAsyncWaitGroup<1>();
  ptx::syncthreads();
  if (!kChannel && first == 0) decayFromEnds(memory_.tokens);
  ofValues(s.dWritten, first);
  ptx::syncthreads();
  storeTensor<kColumns, kRows, kAll>({task_.dv_, batch_, chunk_, head_, first, task_.dv}, 0, dValues, threadAgain());
  smallBetas(first, s);
  const int lane = threadAgain() % 32;
  SEQPAR_UNROLL
  for (int k = 0; k < kColumns; k += kBlock) {
    uint32_t x[4], o[4], d[4];
    loadLeft<true>(x, dX, row_, k, lane);
    loadLeft<true>(o, s.dOut, row_, k, lane);
    loadLeft<false>(d, s.written, row_, k, lane);
    if (column <= row_) accumulateBoth<T, false>(ofKeys_, x, ofScores_, o, s.written, column, k, lane);
    accumulateBoth<T, false>(dq_, o, dRow_, x, s.state, channel_, k, lane);
    accumulate<T, false>(dColumn_, d, s.dState, channel_, k, 0, 4, lane);
  }
  addBoundary(boundary, s, lane);
  ptx::syncthreads();
  startBlock(first + 2 * kColumns);
}
/// Sums of states times their gradients, for channels of the lanes that have elements of a product's diagonal: a warp
/// has 16 channels and a part of the columns.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::addBoundary(float (&sums)[2], const Stage& s, int lane) const {
  constexpr int kPart = kColumns / kHalves;
  const int channel = warp_ / kHalves * kBlock, first = warp_ % kHalves * kPart;
  float c[2][4] = {};
  SEQPAR_UNROLL
  for (int v = first; v < first + kPart; v += kBlock) {
    uint32_t a[4];
    loadLeft<false>(a, s.state, channel, v, lane);
    accumulate<T, false>(c, a, s.dState, channel, v, 0, 2, lane);
  }
  const bool odd = lane / 4 % 2 != 0;
  sums[0] += odd ? c[0][1] : c[0][0];
  sums[1] += odd ? c[1][3] : c[1][2];
}
/// dX = T^T dD; the values' gradients are beta dX.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::ofValues(const SquareRows& dWritten, int first) {
  const SquareRows inverse{memory_.inverse};
  const int column = quarter_ * kBlock;
  const int lane = threadAgain() % 32;
  float c[2][4] = {};
  ValuePairs values;
  if constexpr (kChannel) {
    loadValues(values, first);
    finishValues(values, first);
  }
  for (int k = row_; k < kRows; k += kBlock) {
    uint32_t a[4];
    loadLeft<false>(a, inverse, row_, k, lane);
    accumulate<T, true>(c, a, dWritten, column, k, 0, 2, lane);
  }
  repairValues(c, dWritten);
  storeValues(c, values, first);
}
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::repairValues(float (&c)[2][4],
                                                                    const SquareRows& dWritten) const {
  if (allFinite(c)) return;
  recompute(c, row_, quarter_ * kBlock, [&](int t, int v) {
    return sumForgetting<T, false, true>(SquareRows{memory_.inverse}, t, dWritten, v, row_, kRows);
  });
}
/// Stores dX, `c`, and gradients of values.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::storeValues(float (&c)[2][4], const ValuePairs& values,
                                                                   int first) {
  const int column = quarter_ * kBlock;
  uint32_t pairs[4];
  roundTiles<T>(pairs, c[0], c[1]);
  storeLeft(SquareRows{memory_.dX}, row_, column, pairs);
  if constexpr (kChannel) sumValues(values, c, first);
  eachPair(c, row_, column, [&](int t, int, float& x, float& y) {
    x *= memory_.beta[t];
    y *= memory_.beta[t];
  });
  roundTiles<T>(pairs, c[0], c[1]);
  storeLeft(SquareRows{memory_.dValues}, row_, column, pairs);
}
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::smallBetas(int first, const Stage& s) {
  const int lane = threadAgain() % 32;
  const auto uses = [&](int t) { return t < chunk_.rows && isSmall(t); };
  if (ptx::voteAll(!uses(lane) && !uses(lane + 32))) return;
  for (int t = warp_; t < chunk_.rows; t += kAll / 32) {
    if (!isSmall(t)) continue;
    const float term = differenceTerm<T>(Token<decltype(s.state)>{task_, batch_, chunk_, head_, t, first, keys(),
                                                                  s.state, s.written, SquareRows{memory_.dX}});
    if (lane == 0) memory_.betas[t] += term;
  }
}

}  // namespace seqpar::attn::delta::half
