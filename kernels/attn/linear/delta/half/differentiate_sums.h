// The parts of Differentiate that add and store gradients.
#pragma once

#include "kernels/attn/linear/delta/half/differentiate.h"

namespace seqpar::attn::delta::half {

template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::addSums(const Record& sums) {
  const auto from = [&](float(&c)[4][4], const float* memory) {
    eachPair(c, row_, channel_, [&](int t, int n, float& x, float& y) {
      x += memory[t * kKeys + n];
      y += memory[t * kKeys + n + 1];
    });
  };
  from(dq_, sums.sumQ);
  from(dRow_, sums.sumK);
}
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::keepSums(const Record& sums) {
  const auto to = [&](float(&c)[4][4], float* memory) {
    eachPair(c, row_, channel_, [&](int t, int n, float x, float y) { ptx::storePair(memory + t * kKeys + n, x, y); });
  };
  to(dq_, sums.sumQ);
  to(dRow_, sums.sumK);
}

/// The gradients of q and k from those of scaled and normalized rows.
template <class T, bool kChannel, bool kWgmma>
SEQPAR_DEVICE void Differentiate<T, kChannel, kWgmma>::finish() {
  float *const ofQueries = memory_.ends, *const ofKeys = memory_.terms;
  if (task_.normalize) {
    sumRows(ofQueries, [&](int n, int e, float, float query) { return query * dq_[n][e]; });
    sumRows(ofKeys, [&](int n, int e, float key, float) { return key * dRow_[n][e]; });
    ptx::syncthreads();
  }
  const auto store = [&](float(&c)[4][4], const KeyRows& rows, const float* norms, const float* sums, float scale) {
    const int first = ptx::AccumulatorLayout{threadAgain() % 32}.row(row_);
    float ofRows[2] = {};
    if (task_.normalize && scale != 0) {
      ofRows[0] = rowSum(sums, first) / (scale * scale);
      ofRows[1] = rowSum(sums, first + 8) / (scale * scale);
    }
    const float norm[2] = {norms[first], norms[first + 8]};
    eachKey(rows, [&](int n, int e, uint32_t pair) {
      c[n][e] = norm[e / 2] * (c[n][e] - ptx::lowOf<T>(pair) * ofRows[e / 2]);
      c[n][e + 1] = norm[e / 2] * (c[n][e + 1] - ptx::highOf<T>(pair) * ofRows[e / 2]);
    });
    ptx::syncwarp();
    SEQPAR_UNROLL
    for (int k = 0; k < 2; ++k) {
      uint32_t words[4];
      roundTiles<T>(words, c[2 * k], c[2 * k + 1]);
      storeLeft(rows, row_, channel_ + k * kBlock, words);
    }
  };
  store(dq_, queries(), memory_.qNorm, ofQueries, queryScale());
  store(dRow_, keys(), memory_.kNorm, ofKeys, 1);
  ptx::syncthreads();
  const auto toTensor = [&](const Output& tensor, const KeyRows& rows) {
    storeTensor<kKeys, kRows, kAll>({tensor, batch_, chunk_, keyHead_, 0, task_.dk}, 0, rows, threadAgain());
  };
  toTensor(task_.dq, queries());
  toTensor(task_.dk_, keys());
}

}  // namespace seqpar::attn::delta::half
