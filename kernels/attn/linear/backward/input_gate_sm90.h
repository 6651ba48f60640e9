// The input gates' part of a chunk's gradients (token_sm90.h), on the consumers.
//
// The gradient of token s's gate is the sum over queries t >= s of a_ts (dO_t v_s), plus k_s times the state's term of
// dk_s, both without the gate: sums of a matrix's columns, and of a tile's rows. In shared memory they are added in a
// fixed order, in three steps between the barriers that the chunk needs anyway.
#pragma once

#include "kernels/attn/linear/backward/chunk_sm90.h"
#include "kernels/attn/linear/head_input_gates.h"

namespace seqpar::attn::backward::sm90 {

/// Loads the input gates of tokens 2 lane and 2 lane + 1 of a chunk, of one of the item's heads.
template <class T>
SEQPAR_DEVICE void loadInputs(float (&to)[2], const Task& task, const Item<T>& item, int64_t token, int lane,
                              int which = 0) {
  const HeadInputGates gates(task.inputGates, task.inputGateType, item.sequence, item.head + which);
  const int rows = item.rowsOf(token);
  SEQPAR_UNROLL
  for (int i = 0; i < 2; ++i) to[i] = lane * 2 + i < rows ? gates.read(token + lane * 2 + i) : 0.f;
}

/// Writes the gradients of the same gates.
template <class T>
SEQPAR_DEVICE void writeInputs(const float (&sums)[2], const Task& task, const Item<T>& item, int64_t token, int lane,
                               int which = 0) {
  const Target& to = task.dInputGates;
  if (to.data == nullptr) return;
  const int rows = item.rowsOf(token);
  SEQPAR_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = lane * 2 + i;
    if (row >= rows) continue;
    const int64_t at = item.sequence * to.batch + (token + row) * to.token + (item.head + which) * to.head;
    if (to.type == seqparFloat32) {
      static_cast<float*>(to.data)[at] = sums[i];
    } else {
      static_cast<uint16_t*>(to.data)[at] = static_cast<uint16_t>(ptx::pack<Bf16>(sums[i], 0));
    }
  }
}

template <class T>
struct InputGateTerms {
  using Products = ChunkProducts<T>;
  TokenMemory<T>& memory;
  int chunk;
  const Half& me;

  /// The gate of this thread's row r.
  SEQPAR_DEVICE float of(int r) const { return memory.inputs[chunk % 2][me.row + r * 8]; }

  /// Sums over the warp's rows.
  SEQPAR_DEVICE static void addColumns(float (&columns)[4][2]) {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        SEQPAR_UNROLL
        for (int mask = 4; mask < 32; mask *= 2) columns[n][e] += ptx::shflXor(columns[n][e], mask);
      }
    }
  }
  /// Warps kFirstWarp and kFirstWarp + 1 of each warpgroup: 2 and 3 store their sums; after a barrier, 0 and 1 add
  /// theirs.
  template <int kFirstWarp>
  SEQPAR_DEVICE void putColumns(const float (&columns)[4][2]) const {
    if (me.warpIndex / 2 != kFirstWarp / 2 || me.g != 0) return;
    float* const to = memory.inputTerms[me.warpIndex % 2];
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& sum = to[Products::keyOf(n, e, me)];
        sum = kFirstWarp == 0 ? sum + columns[n][e] : columns[n][e];
      }
    }
  }
  /// Sums of k dk over the warpgroup's channels, for this thread's rows.
  SEQPAR_DEVICE void addRows(float (&terms)[2], const Half::Part& dk) const {
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; n += 2) {
      uint32_t words[4];
      loadTiles(words, memory.k(chunk), n, me);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = dk[n + i / 2] + i % 2 * 2;
        terms[i % 2] += ptx::lowOf<T>(words[i]) * pair[0] + ptx::highOf<T>(words[i]) * pair[1];
      }
    }
    SEQPAR_UNROLL
    for (float& term : terms) {
      term += ptx::shflXor(term, 1);
      term += ptx::shflXor(term, 2);
    }
  }
  /// After a barrier.
  SEQPAR_DEVICE void putRows(const float (&terms)[2]) const {
    if (me.c != 0) return;
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) memory.inputTerms[me.group][me.row + r * 8] += terms[r];
  }
  /// After a barrier: the last warp but one.
  SEQPAR_DEVICE void write(const Task& task, const Item<T>& item, int64_t token) const {
    if (me.thread / 32 != Half::kThreads / 32 - 2) return;
    const int row = me.lane * 2;
    const float sums[2] = {memory.inputTerms[0][row] + memory.inputTerms[1][row],
                           memory.inputTerms[0][row + 1] + memory.inputTerms[1][row + 1]};
    writeInputs(sums, task, item, token, me.lane);
  }
};

}  // namespace seqpar::attn::backward::sm90
