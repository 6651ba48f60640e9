// Parts of the sm_90 gradients' kernels for token decays that one head (token_sm90.h) and a pair of heads (pair_sm90.h)
// share.
#pragma once

#include "kernels/attn/linear/backward/loads_sm90.h"
#include "kernels/attn/linear/backward/value_sums_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// The least log-decay of a chunk for decays as products of one factor of each token.
constexpr float kLeastOfFactors = -100;

/// Multiplies this thread's rows of the warpgroup's columns of a tile.
template <class T>
SEQPAR_DEVICE void scaleTile(T* to, const T* from, float factor, float factor8, const Half& me) {
  constexpr int kPairs = Half::kTiles8 / 2;
  uint32_t words[kPairs][4];
  SEQPAR_UNROLL
  for (int j = 0; j < kPairs; ++j) loadTiles(words[j], from, j * 2, me);
  SEQPAR_UNROLL
  for (int j = 0; j < kPairs; ++j) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float by = i % 2 == 0 ? factor : factor8;
      words[j][i] = ptx::pack<T>(ptx::lowOf<T>(words[j][i]) * by, ptx::highOf<T>(words[j][i]) * by);
    }
    storeTiles(to, j * 2, words[j], me);
  }
}

/// Multiplies the rows of accumulators by factors that may be 0.
SEQPAR_DEVICE void scaleRows(Half::Part& part, float factor, float factor8) {
  SEQPAR_UNROLL
  for (int n = 0; n < Half::kTiles8; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) part[n][e] = times(e < 2 ? factor : factor8, part[n][e]);
  }
}

/// The same for factors that are not 0.
SEQPAR_DEVICE void multiplyRows(Half::Part& part, float factor, float factor8) {
  SEQPAR_UNROLL
  for (int n = 0; n < Half::kTiles8; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) part[n][e] *= e < 2 ? factor : factor8;
  }
}

/// One warp: the gates' gradients of a chunk, the sums of `own`, the terms of tokens 2 lane and 2 lane + 1, to the
/// chunk's end, and of `last`, the carry from later tokens. kWide: the sum over a head's blocks of keys, to which the
/// same thread adds one after the other.
template <bool kWide, class T>
SEQPAR_DEVICE void writeTokenGates(const float (&own)[2], float last, const uint8_t* forgets, const Task& task,
                                   const Item<T>& item, int64_t token, int lane, int which = 0) {
  const Target& to = task.dGates;
  float sum = own[0] + own[1];
  SEQPAR_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = ptx::shfl(sum, lane + distance);
    if (lane + distance < 32) sum += other;
  }
  const int rows = item.rowsOf(token);
  SEQPAR_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = lane * 2 + i;
    if (row >= rows) continue;
    const float value = forgets[row] != 0 ? 0.f : last + (i == 0 ? sum : sum - own[0]);
    float* const at = static_cast<float*>(to.data) + item.sequence * to.batch + (token + row) * to.token +
                      (item.head + which) * to.head + item.valueBlock * to.block;
    putOrAdd<kWide>(at, value, item.keyBlock);
  }
}

}  // namespace seqpar::attn::backward::sm90
