// The parts of DifferentiateSm90 for decays of tokens, and without decays.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate_sm90.h"

namespace seqpar::attn::delta::half {

/// Adds the gradients through scores; then dRow_ has those of keys.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::throughScores() {
  float ends = 0;
  const ptx::AccumulatorLayout layout{threadAgain() % 32};
  const float outs[2] = {memory_.tokens.out[layout.row(row_)], memory_.tokens.out[layout.row(row_) + 8]};
  SEQPAR_UNROLL
  for (int k = 0; k < kRows / kBlock; ++k) {
    uint32_t key[4];
    loadLeft<true>(key, rowsOfPanel(keys()), row_, k * kBlock, layout.lane);
    SEQPAR_UNROLL
    for (int j = 0; j < 4; ++j) {
      float* const pair = dColumn_[2 * k + j / 2] + j % 2 * 2;
      const float out = outs[j % 2];
      pair[0] = forgetting(out, pair[0]);
      pair[1] = forgetting(out, pair[1]);
      ends += ptx::lowOf<T>(key[j]) * pair[0] + ptx::highOf<T>(key[j]) * pair[1];
    }
  }
  decayRows(dq_, 1);
  decayRows(dRow_, -1);
  if (!finite_) clearKeys();
  warpgroup::fenceProxyAsync();
  ptx::syncthreads();
  warpgroup::arrive();
  multiplyTerms<T, Terms::AlongRows, Terms::Rows, kRows>(dq_, operand(ofScores().offset), panel(keys()), true);
  multiplyTerms<T, Terms::AlongRows, Terms::Rows, kRows>(dRow_, operand(ofKeys().offset), panel(keys()), true);
  multiplyTerms<T, Terms::Rows, Terms::Rows, kRows>(dColumn_, operand(ofScores().offset), panel(queries()), true);
  multiplyTerms<T, Terms::Rows, Terms::Rows, kRows>(dColumn_, operand(ofKeys().offset), panel(keys()), true);
  warpgroup::commit();
  keepWarpSum(memory_.ends, ends);
  warpgroup::wait<0>();
  warpgroup::fenceOperand(dq_);
  warpgroup::fenceOperand(dRow_);
  warpgroup::fenceOperand(dColumn_);
  if (!finite_) {
    reloadKeys();
    addForgetting(dq_, [&](int t, int c) { return sumForgetting<T, true, false>(ofScores(), t, keys(), c, 0, kRows); });
    addForgetting(dRow_, [&](int t, int c) { return sumForgetting<T, true, false>(ofKeys(), t, keys(), c, 0, kRows); });
    addForgetting(dColumn_, [&](int t, int c) {
      return sumForgetting<T, false, false>(ofScores(), t, queries(), c, 0, kRows) +
             sumForgetting<T, false, false>(ofKeys(), t, keys(), c, 0, kRows);
    });
  }
  if (task_.dGates.data != nullptr || (!kShared && task_.normalize)) {
    this->template sumRows<3>(
        [&](float(&sums)[3], int n, int e, float key, float query) {
          sums[0] += query * dq_[n][e];
          sums[1] += key * dRow_[n][e];
          sums[2] += key * dColumn_[n][e];
        },
        [&](int i, const float(&sums)[3]) {
          memory_.terms[i] = sums[0] + (sums[1] - sums[2]);
          if constexpr (kShared) return;
          memory_.ofQueryRows[i] = sums[0];
          memory_.ofKeyRows[i] = sums[1] + sums[2];
        });
  }
  SEQPAR_UNROLL
  for (int n = 0; n < 8; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) dRow_[n][e] += dColumn_[n][e];
  }
  ptx::syncthreads();
}
/// Keys or queries are not finite: adds sums in which a factor of 0 forgets, and lets products add 0.
template <class T, bool kTwo, bool kShared, bool kChannel>
template <class Sum>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::addForgetting(Tiles& c, const Sum& sum) const {
  const int lane = threadAgain() % 32, g = row_ + lane / 4, p = channel_ + lane % 4 * 2;
  SEQPAR_ROLLED
  for (int i = 0; i < 32; ++i) {
    const float value = sum(g + i / 2 % 2 * 8, p + i / 4 * 8 + i % 2);
    SEQPAR_UNROLL
    for (int n = 0; n < 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) c[n][e] += 4 * n + e == i ? value : 0;
    }
  }
}
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::clearKeys() const {
  const uint32_t zeros[4] = {};
  ptx::syncthreads();
  SEQPAR_ROLLED
  for (int i = threadAgain(); i < kRows * KeyTile::kWidth; i += kAll) {
    ptx::store(keys().unit(i / KeyTile::kWidth, i % KeyTile::kWidth), zeros);
    ptx::store(queries().unit(i / KeyTile::kWidth, i % KeyTile::kWidth), zeros);
  }
}
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::reloadKeys() const {
  ptx::syncthreads();
  startRows(keys(), task_.k);
  startRows(queries(), task_.q);
  ptx::cpAsyncWaitGroup<0>();
  ptx::syncthreads();
  scaleKeys();
  ptx::syncthreads();
}

/// Multiplies by the decays from the chunk's start and a sign.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::decayRows(Tiles& c, float sign) const {
  eachPair(c, row_, channel_, [&](int t, int, float& x, float& y) {
    const float in = memory_.tokens.in[t], by = sign * in;
    x = in == 0 ? 0 : by * x;
    y = in == 0 ? 0 : by * y;
  });
}

}  // namespace seqpar::attn::delta::half
