// The input gates of a chunk and their gradients (token_sm90.h, pair_sm90.h).
//
// The gradient of token s's gate is the sum over queries t >= s of a_ts (dO_t v_s), plus k_s times the state's term of
// dk_s, both without the gate: sums of a matrix's columns, and of a tile's rows.
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

/// Writes the gradients of the same gates. kWide: their sums over blocks of keys, or fp32 terms if Target has blocks.
template <bool kWide, class T>
SEQPAR_DEVICE void writeInputs(const float (&sums)[2], const Task& task, const Item<T>& item, int64_t token, int lane,
                               int which = 0) {
  const Target& to = task.dInputGates;
  if (to.data == nullptr) return;
  const int rows = item.rowsOf(token);
  SEQPAR_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = lane * 2 + i;
    if (row >= rows) continue;
    const int64_t at = item.sequence * to.batch + (token + row) * to.token + (item.head + which) * to.head +
                       (kWide ? item.keyBlock * to.block : 0);
    if (to.type == seqparFloat32) {
      putOrAdd<kWide>(static_cast<float*>(to.data) + at, sums[i], to.block == 0 ? item.keyBlock : 0);
    } else {
      static_cast<uint16_t*>(to.data)[at] = static_cast<uint16_t>(ptx::pack<Bf16>(sums[i], 0));
    }
  }
}

}  // namespace seqpar::attn::backward::sm90
