// The parts of DifferentiateSm90 that add and store gradients.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate_sm90.h"

namespace seqpar::attn::delta::half {

template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::addSums(const Record& sums) {
  const auto from = [&](Tiles& c, const float* memory) {
    eachPair(c, row_, channel_, [&](int t, int n, float& x, float& y) {
      x += memory[t * kKeys + n];
      y += memory[t * kKeys + n + 1];
    });
  };
  from(dq_, sums.sumQ);
  from(dRow_, sums.sumK);
}
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::keepSums(const Record& sums) {
  const auto to = [&](Tiles& c, float* memory) {
    eachPair(c, row_, channel_, [&](int t, int n, float x, float y) { ptx::storePair(memory + t * kKeys + n, x, y); });
  };
  to(dq_, sums.sumQ);
  to(dRow_, sums.sumK);
}

/// The gradients of q and k from those of scaled and normalized rows.
template <class T, bool kTwo, bool kShared, bool kChannel>
SEQPAR_DEVICE void DifferentiateSm90<T, kTwo, kShared, kChannel>::finish() {
  if (task_.normalize && (kShared || kChannel)) {  // otherwise throughScores() has them
    this->template sumRows<2>(
        [&](float(&sums)[2], int n, int e, float key, float query) {
          sums[0] += query * dq_[n][e];
          sums[1] += key * dRow_[n][e];
        },
        [&](int i, const float(&sums)[2]) {
          memory_.ofQueryRows[i] = sums[0];
          memory_.ofKeyRows[i] = sums[1];
        });
    ptx::syncthreads();
  }
  const auto store = [&](const Output& tensor, Tiles& c, const KeyTile& rows, const float* norms, const float* sums,
                         float scale) {
    const bool normalized = task_.normalize && scale != 0;
    const int lane = threadAgain() % 32, first = ptx::AccumulatorLayout{lane}.row(row_);
    float norm[2], along[2];
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      norm[h] = norms[first + 8 * h];
      along[h] = normalized ? rowSum(sums, first + 8 * h) / (scale * scale) : 0;
    }
    SEQPAR_UNROLL
    for (int k = 0; k < kRows / kBlock; ++k) {
      uint32_t words[4] = {};
      if (normalized) loadLeft<true>(words, rowsOfPanel(rows), row_, k * kBlock, lane);
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        float* const pair = c[2 * k + j / 2] + j % 2 * 2;
        pair[0] = norm[j % 2] * (pair[0] - ptx::lowOf<T>(words[j]) * along[j % 2]);
        pair[1] = norm[j % 2] * (pair[1] - ptx::highOf<T>(words[j]) * along[j % 2]);
      }
    }
    storeTiles<T>({tensor, batch_, chunk_, keyHead_, channel_, task_.dk}, row_, rowsOfPanel(rows), 0, c);
  };
  store(task_.dq, dq_, queries(), memory_.qNorm, memory_.ofQueryRows, task_.scale);
  store(task_.dk_, dRow_, keys(), memory_.kNorm, memory_.ofKeyRows, 1);
}

}  // namespace seqpar::attn::delta::half
