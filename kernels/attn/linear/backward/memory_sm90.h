// Shared memory of the gradients' kernels of sm_90, and the tiles of a chunk that they fetch.
#pragma once

#include "kernels/attn/linear/backward/channel_decays_sm90.h"
#include "kernels/attn/linear/backward/roles_sm90.h"
#include "kernels/attn/linear/backward/sweep_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// Tiles have two stages; in the sweep, which needs keys and values alone, kSweepStages.
template <class T, int kSweepStages>
struct ChunkTiles {
  T tiles[8][kTile];
  T before[kMatrix], after[kMatrix];  ///< the states S and E

  SEQPAR_WARP T* q(int chunk) { return tiles[chunk % 2]; }
  SEQPAR_WARP T* k(int chunk) { return tiles[2 + chunk % 2]; }
  SEQPAR_WARP T* v(int chunk) { return tiles[4 + chunk % 2]; }
  SEQPAR_WARP T* dOut(int chunk) { return tiles[6 + chunk % 2]; }
  SEQPAR_WARP T* sweptKeys(int chunk) { return tiles[chunk % kSweepStages * 2]; }
  SEQPAR_WARP T* sweptValues(int chunk) { return tiles[chunk % kSweepStages * 2 + 1]; }

  SEQPAR_WARP void fetch(const Task& task, const Item<T>& item, int chunk, int thread) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token);
    fetchRows<kChunk, Half::kThreads>(q(chunk), item.q + token * task.q.token, task.q.token, rows, item.keys, thread);
    fetchRows<kChunk, Half::kThreads>(k(chunk), item.k + token * task.k.token, task.k.token, rows, item.keys, thread);
    fetchRows<kChunk, Half::kThreads>(v(chunk), item.v + token * task.v.token, task.v.token, rows, item.values, thread);
    fetchRows<kChunk, Half::kThreads>(dOut(chunk), item.dOut + token * task.dOut.token, task.dOut.token, rows,
                                      item.values, thread);
  }
  SEQPAR_WARP void fetchSwept(const Task& task, const Item<T>& item, int chunk, int thread) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token);
    fetchRows<kChunk, Half::kThreads>(sweptKeys(chunk), item.k + token * task.k.token, task.k.token, rows, item.keys,
                                      thread);
    fetchRows<kChunk, Half::kThreads>(sweptValues(chunk), item.v + token * task.v.token, task.v.token, rows,
                                      item.values, thread);
  }
  /// States are kept as they lie in shared memory.
  SEQPAR_WARP void fetchState(const T* states, int chunk, int thread) {
    const T* from = states + int64_t{chunk} * kMatrix + thread * 8;
    SEQPAR_UNROLL
    for (int i = 0; i < kMatrix; i += Half::kThreads * 8) warp::copyAsync(before + thread * 8 + i, from + i, true);
  }
};

/// The same place in shared memory, by an address that is made anew: otherwise all that follow from it are made before
/// the loops, and there are more than registers.
template <class Memory>
SEQPAR_WARP Memory& memoryAgain() {
  return *reinterpret_cast<Memory*>(warp::sharedMemory() + warp::hidden(0));
}

/// Of channel gates; in the sweep the last four tiles are two stages of these.
template <class T>
struct ChannelMemory : ChunkTiles<T, 2> {
  ChannelDecays<T> decays;
  float carry[2][kBlock];  ///< row sums of S * E at the ends of two chunks
  float own[kChunk];       ///< dA of a token with itself
  alignas(16) char item[kItemBytes];

  SEQPAR_WARP char* sweptGates(int chunk) { return reinterpret_cast<char*>(this->tiles[4 + chunk % 2 * 2]); }

  SEQPAR_WARP void fetch(const Task& task, const Item<T>& of, int chunk, int thread) {
    ChunkTiles<T, 2>::fetch(task, of, chunk, thread);
    decays.fetch(ChannelDecays<T>::kept(task, chunk), chunk, thread);
  }
};

/// Of decays one a token.
template <class T>
struct TokenMemory : ChunkTiles<T, 4> {
  static constexpr int kWarps = Half::kThreads / 32;
  T queries[kTile], keys[kTile];  ///< with their decays from the chunk's beginning, to its end
  float sums[2][kChunk];
  uint8_t forgets[2][kChunk];
  float terms[2][kChunk];  ///< sums of q dq - k dk over each warpgroup's channels
  float carry[2][kWarps];  ///< sum of S * E at the ends of two chunks, from each warp
  float own[kChunk];       ///< dA of a token with itself
  alignas(16) char item[kItemBytes];
};

}  // namespace seqpar::attn::backward::sm90
