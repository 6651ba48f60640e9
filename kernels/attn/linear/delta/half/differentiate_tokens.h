// The parts of Differentiate for decays of tokens, and without decays.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate_states.h"

namespace seqpar::attn::delta::half {

template <class T, bool kChannel, bool kWgmma>
template <class Element, bool kLeft>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::multiply(float (&part)[4][4], const SquareRows& a,
                                                                const KeyRows& b, int first, int last) const {
  clear(part);
  const int lane = threadAgain() % 32;
  for (int k = first; k < last; k += kBlock) {
    uint32_t x[4];
    loadLeft<kLeft>(x, a, row_, k, lane);
    accumulate<Element, false>(part, x, b, channel_, k, 0, 4, lane);
  }
  if (!allFinite(part)) {
    recompute(part, row_, channel_,
              [&](int t, int c) { return sumForgetting<Element, kLeft, false>(a, t, b, c, first, last); });
  }
}

/// Stores gradients of betas, and of scores times within(i, j) for tokens of one block, before(i, j) for a token of
/// an earlier block. Blocks above the diagonal are not written.
template <class T, bool kChannel, bool kWgmma>
template <class Within, class Before>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::storeScores(const Within& within, const Before& before) {
  const int column = quarter_ * kBlock;
  if (column > row_) return;
  const auto put = [&](const SquareRows& to, int i, int j, float x, float y) { to.pair(i, j) = ptx::pack<T>(x, y); };
  if (column < row_) {
    eachPair(ofKeys_, row_, column, [&](int i, int j, float x, float y) {
      const float beta = -memory_.beta[i];
      put(ofKeys(), i, j, forgetting(before(i, j), beta * x), forgetting(before(i, j + 1), beta * y));
    });
    eachPair(ofScores_, row_, column, [&](int i, int j, float x, float y) {
      put(ofScores(), i, j, forgetting(before(i, j), x), forgetting(before(i, j + 1), y));
    });
    return;
  }
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  const int first = layout.row(row_);
  if (layout.column(row_) == first / 2 * 2) {  // the diagonal
    const bool odd = first % 2 != 0;
    ofBeta(first, odd ? ofKeys_[0][1] : ofKeys_[0][0]);
    ofBeta(first + 8, odd ? ofKeys_[1][3] : ofKeys_[1][2]);
  }
  eachPair(ofKeys_, row_, column, [&](int i, int j, float x, float y) {
    const float beta = -memory_.beta[i], low = within(i, j), high = within(i, j + 1);
    put(ofKeys(), i, j, i > j ? forgetting(low, beta * x) : 0, i > j + 1 ? forgetting(high, beta * y) : 0);
  });
  eachPair(ofScores_, row_, column, [&](int i, int j, float x, float y) {
    const float low = within(i, j), high = within(i, j + 1);
    put(ofScores(), i, j, i >= j ? forgetting(low, x) : 0, i >= j + 1 ? forgetting(high, y) : 0);
  });
}

template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::throughScores() {
  const TokenMemory& m = memory_.tokens;
  float between = 1;  // blocks
  for (int n = quarter_ + 1; n < row_ / kBlock; ++n) between *= m.totals[n];
  storeScores([&](int i, int j) { return m.within[i * kBlock + j % kBlock]; },
              [&](int i, int j) { return m.run[i] * m.suffix[j] * between; });
  decayRows([&](int t, int) { return m.in[t]; }, [&](int t, int) { return m.out[t]; });
  sumRows(memory_.ends, [&](int n, int e, float key, float) { return key * dColumn_[n][e]; });
  ptx::syncthreads();
  float part[4][4];
  multiply<T, true>(part, ofScores(), keys(), 0, row_ + kBlock);
  add(dq_, part);
  multiply<T, true>(part, ofKeys(), keys(), 0, row_ + kBlock);
  add(dRow_, part);
  multiply<T, false>(part, ofScores(), queries(), row_, kRows);
  add(dColumn_, part);
  multiply<T, false>(part, ofKeys(), keys(), row_, kRows);
  add(dColumn_, part);
  sumRows(memory_.terms, [&](int n, int e, float key, float query) {
    return query * dq_[n][e] + key * (dRow_[n][e] - dColumn_[n][e]);
  });
  addColumns();
  ptx::syncthreads();
}

/// A decay of 0 has a gradient of 0, and separates later tokens from earlier ones.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::ofGates() {
  const int t = threadAgain();
  if (task_.dGates.data == nullptr || t >= kRows) return;
  float ofStates = 0, ends = 0;
  for (int i = t % 32; i < DifferentiateMemory::kHalves * kKeys; i += 32) ofStates += memory_.boundary[i];
  for (int i = t % 32; i < kQuarters * kRows; i += 32) ends += memory_.ends[i];
  float run = forgetting(memory_.tokens.in[kRows - 1], sumOfWarp(ofStates)) + sumOfWarp(ends);
  for (int i = kRows; i-- > t;) {
    run += rowSum(memory_.terms, i);
    if (memory_.tokens.decay[i] == 0) run = 0;
  }
  if (t >= chunk_.rows) return;
  storeNumber(task_.dGates.data, task_.gateType, rowOf(task_.dGates, batch_, chunk_.first + t, head_), run);
}

}  // namespace seqpar::attn::delta::half
