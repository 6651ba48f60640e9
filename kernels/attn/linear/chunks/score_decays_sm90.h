// Scores of 64 queries times their decays and input gates, for kernels that multiply them in registers by values.
#pragma once

#include "kernels/attn/linear/backward/gates_sm90.h"
#include "kernels/attn/linear/backward/token_sweep_sm90.h"

namespace seqpar::attn::forward_sm90 {

using Word4 = uint32_t[4];
using Score4 = const float[4];

/// Of 8 kTiles keys, by products of a factor of the query and one of the key. `row`, `row8`: of this thread's queries.
template <class T, int kTiles>
SEQPAR_DEVICE void packScaled(Word4* words, Score4* scores, const float* keys, float row, float row8, int c) {
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    float low, high;
    ptx::loadPair(keys + n * 8 + c * 2, low, high);
    Score4& own = scores[n];
    uint32_t* to = words[n / 2] + n % 2 * 2;
    to[0] = ptx::pack<T>(own[0] * (row * low), own[1] * (row * high));
    to[1] = ptx::pack<T>(own[2] * (row8 * low), own[3] * (row8 * high));
  }
}

/// The same with strong decays, from `sums`, log2-decays of keys and queries from the chunk's start. `first`: the
/// thread's first query.
template <class T, int kTiles>
SEQPAR_DEVICE void packExactly(Word4* words, Score4* scores, const float* sums, const float* inputs, float scale,
                               int first, int c) {
  const float ofQueries[2] = {sums[first], sums[first + 8]};
  SEQPAR_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    float of[2], gates[2], numbers[4];
    ptx::loadPair(sums + n * 8 + c * 2, of[0], of[1]);
    ptx::loadPair(inputs + n * 8 + c * 2, gates[0], gates[1]);
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) {
      const float decay = scale * backward::decayOf(fminf(ofQueries[e / 2] - of[e % 2], 0.f));
      numbers[e] = backward::times(decay * gates[e % 2], scores[n][e]);
    }
    uint32_t* to = words[n / 2] + n % 2 * 2;
    to[0] = ptx::pack<T>(numbers[0], numbers[1]);
    to[1] = ptx::pack<T>(numbers[2], numbers[3]);
  }
}

}  // namespace seqpar::attn::forward_sm90
