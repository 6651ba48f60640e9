// The consumers' steps of a chunk that are common to all decays; the others are in channel_sm90.h and token_sm90.h.
#pragma once

#include "kernels/attn/linear/backward/scores_sm90.h"
#include "kernels/attn/linear/backward/value_sums_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// A chunk from the consumers' view.
template <class T, class ChunkMemory>
struct ChunkConsumer {
  using Memory = ChunkMemory;
  using Part = Half::Part;
  using Products = ChunkProducts<T>;

  const Task& task;
  const Item<T>& item;
  Memory& memory;
  Half me;
  int chunk;

  SEQPAR_DEVICE int64_t token() const { return item.first + int64_t{chunk} * kChunk; }

  /// The matrices overwrite v.
  SEQPAR_DEVICE ChunkOperands<T> operands() const {
    return {memory.q(chunk), memory.k(chunk), memory.v(chunk), memory.dOut(chunk),          memory.stateKeys(chunk),
            memory.before,   memory.after,    memory.v(chunk), memory.v(chunk) + kTilePanel};
  }
  SEQPAR_DEVICE void storeMatrices(const ChunkOperands<T>& operands, const Scores& dA, const Scores& a) const {
    Roles::syncConsumers();  // v is no longer read
    Products::store(operands.dA, dA, me);
    Products::store(operands.a, a, me);
  }
  /// Token decays: writes dv, with kWide the sum over all blocks of keys after the last of them. `offset`: in an item's
  /// dvOut.
  template <bool kWide>
  SEQPAR_DEVICE void writeValues(Part& dv, int64_t token, int64_t offset, int columns) const {
    if (kWide && !ValueSums(task, chunk, me).completes(dv, item.keyBlock, task.keyBlocks)) return;
    Rows(task.dvOut, item, token, offset, columns).template writeThrough<T>(memory.dOut(chunk), dv, me);
  }
  SEQPAR_DEVICE Rows rowsOf(const Target& target, int64_t token) const {
    return Rows(target, item, token, keyOffset(target, item), item.keys);
  }
};

}  // namespace seqpar::attn::backward::sm90
