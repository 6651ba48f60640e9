// Shared memory of the gradients' kernel, and the loads of a chunk.
#pragma once

#include "kernels/attn/linear/backward/sweep.h"

namespace seqpar::attn::backward {

constexpr int kTokenTiles = kTiles * (kTiles + 1) / 2;  ///< tiles of the lower triangle of 64 x 64

/// A warp's part of 64 x KD: its 16 tokens, its channels.
template <int KD>
using ChunkPart = float[Columns<KD>::kTiles8][4];

template <class T, int KD, int VD>
struct GradientsMemory {
  T q[kChunk * (KD + 8)], k[kChunk * (KD + 8)], v[kChunk * (VD + 8)], dOut[kChunk * (VD + 8)];
  T before[KD * (VD + 8)], after[KD * (VD + 8)];  ///< the states S and E
  alignas(16) T
      nearKeys[kChunk * (KD + 8)];  ///< channel gates: q or k relative to the other tile of 32 tokens; others: scaled q
  T farKeys[kChunk * (KD + 8)];     ///< channel gates: relative to the other half of the chunk
  T a[kChunk * kTokenStride], dA[kChunk * kTokenStride];
  T rest[kChunk * kTokenStride];  ///< strong channel decays: rounding remainder of dA, later of A
  float diagonals[kTiles * Columns<KD>::kParts][16 * 16];  ///< of A, one for each part of the channels
  float totals[kTiles * KD];                               ///< log-decays of tiles of tokens
  float toBegin[kTiles * KD];                              ///< decay from the chunk's start to the tile's
  float toEnd[kTiles * KD];                                ///< from the tile's end to the chunk's
  float chunkDecay[KD], decay1[KD], decay2[KD];            ///< of the chunk, of its tiles 1 and 2
  float carry[2][2 * KD];         ///< rowsum(state * E) at the chunk's end, for this chunk and the next one
  float gateTotals[kTiles * KD];  ///< sums of q dq - k dk over tiles
  float ownTerms[kChunk];         ///< dA of a token with itself
  float sums[kChunk];             ///< log-decays of other gates
  float gateTerms[Columns<KD>::kParts][kChunk];
  uint8_t forgets[2][kChunk];  ///< of this chunk and the next one
};

/// Asynchronous loads of a chunk's tiles from global memory.
template <class T, int KD, int VD, bool kChannel>
struct ChunkTiles {
  using Memory = GradientsMemory<T, KD, VD>;
  using Gates = ChannelGates<KD>;
  static constexpr int kThreads = Columns<KD>::kThreads;
  static_assert(Gates::kBytes <= 2 * sizeof(Memory::nearKeys));  // gates are loaded to the memory of scaled keys

  SEQPAR_DEVICE static void fetch(const Task& task, const Item<T>& item, int chunk, const T* states, Memory& memory,
                                  int thread) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token);
    if constexpr (kChannel) {
      Gates::fetch(memory.nearKeys, task, item, token, thread);  // needed first
      ptx::cpAsyncCommitGroup();
    }
    fetchTile<VD>(memory.v, item.v + token * task.v.token, task.v.token, rows, item.values, thread);
    fetchTile<VD>(memory.dOut, item.dOut + token * task.dOut.token, task.dOut.token, rows, item.values, thread);
    fetchTile<KD>(memory.q, item.q + token * task.q.token, task.q.token, rows, item.keys, thread);
    fetchTile<KD>(memory.k, item.k + token * task.k.token, task.k.token, rows, item.keys, thread);
    const T* from = states + int64_t{chunk} * KD * VD;
    for (int unit = thread; unit < KD * VD / 8; unit += kThreads) {
      const int row = unit / (VD / 8), column = unit % (VD / 8) * 8;
      ptx::cpAsync16(memory.before + row * (VD + 8) + column, from + row * VD + column, true);
    }
    ptx::cpAsyncCommitGroup();
  }

  SEQPAR_DEVICE static void prefetch(const Task& task, const Item<T>& item, int chunk, const T* states, int thread) {
    if (chunk < 0) return;
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token);
    prefetchTile<KD>(item.q + token * task.q.token, task.q.token, rows, thread);
    prefetchTile<KD>(item.k + token * task.k.token, task.k.token, rows, thread);
    prefetchTile<VD>(item.v + token * task.v.token, task.v.token, rows, thread);
    prefetchTile<VD>(item.dOut + token * task.dOut.token, task.dOut.token, rows, thread);
    if constexpr (kChannel) {
      Gates::prefetch(task, item, token, thread);
    } else if (task.gate == Gate::Token && thread < rows) {
      ptx::prefetch(reinterpret_cast<const float*>(item.gates) + (token + thread) * task.gates.token);
    }
    for (int line = thread; line < KD * VD / 64; line += kThreads) {
      ptx::prefetch(states + int64_t{chunk} * KD * VD + line * 64);
    }
  }
};

}  // namespace seqpar::attn::backward
