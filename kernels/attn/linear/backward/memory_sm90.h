// Shared memory of the gradients' kernels of sm_90, and the tiles of a chunk that they fetch.
#pragma once

#include "kernels/attn/linear/backward/sweep_sm90.h"

namespace seqpar::attn::backward::sm90 {

using GradientsPlace = Place<4>;

template <class T>
struct ChunkTiles {
  T q[2][kTile], k[2][kTile], v[2][kTile], dOut[2][kTile];  ///< one chunk's arrive while another's are worked on
  T before[kMatrix], after[kMatrix];                        ///< the states S and E

  SEQPAR_WARP void fetch(const Task& task, const Item<T>& item, int chunk, int thread) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token), stage = chunk % 2;
    fetchRows<kChunk, GradientsPlace::kThreads>(dOut[stage], item.dOut + token * task.dOut.token, task.dOut.token, rows,
                                                item.values, thread);
    fetchRows<kChunk, GradientsPlace::kThreads>(v[stage], item.v + token * task.v.token, task.v.token, rows,
                                                item.values, thread);
    fetchRows<kChunk, GradientsPlace::kThreads>(q[stage], item.q + token * task.q.token, task.q.token, rows, item.keys,
                                                thread);
    fetchRows<kChunk, GradientsPlace::kThreads>(k[stage], item.k + token * task.k.token, task.k.token, rows, item.keys,
                                                thread);
  }
  SEQPAR_WARP void fetchState(const T* states, int chunk, int thread) {
    fetchRows<kBlock, GradientsPlace::kThreads>(before, states + int64_t{chunk} * kMatrix, kBlock, kBlock, kBlock,
                                                thread);
  }
};

/// Of channel gates.
template <class T>
struct ChannelMemory : ChunkTiles<T> {
  ChannelSums<GradientsPlace> gates;
  float tiles[2][kBlock];  ///< sums of q dq - k dk over tiles 1 and 2 of 16 tokens; tile 3's displace gates.totals
  float carry[2][kBlock];  ///< row sums of S * E at the chunk's end, over half of the columns each
  float own[kChunk];       ///< dA of a token with itself
  alignas(16) char item[kItemBytes];

  /// Sums over tile 1, 2 or 3.
  SEQPAR_WARP float* tile(int index) { return index == 3 ? gates.totals : tiles[index - 1]; }
};

/// Of decays one a token.
template <class T>
struct TokenMemory : ChunkTiles<T> {
  T queries[kTile], keys[kTile];  ///< with their decays from the chunk's beginning, to its end
  float sums[2][kChunk];
  uint8_t forgets[2][kChunk];
  float terms[4][kChunk];  ///< sums of q dq - k dk over each warpgroup's channels
  float carry[2][16];      ///< sum of S * E at the chunk's end, from each warp, of this chunk and the one after
  float own[kChunk];       ///< dA of a token with itself
  alignas(16) char item[kItemBytes];
};

}  // namespace seqpar::attn::backward::sm90
