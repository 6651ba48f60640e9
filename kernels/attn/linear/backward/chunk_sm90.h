// The consumers' steps of a chunk that are common to all decays; the others are in channel_sm90.h and token_sm90.h.
#pragma once

#include "kernels/attn/linear/backward/scores_sm90.h"
#include "kernels/attn/linear/backward/value_sums_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// A chunk from the consumers' view.
/// kHeads: with two, a warpgroup has one head of the item.
template <class T, class ChunkMemory, int kHeads = 1>
struct ChunkConsumer {
  using Memory = ChunkMemory;
  using Part = Half::Part;
  using Products = ChunkProducts<T, kHeads>;

  const Task& task;
  const Item<T>& item;
  Memory& memory;
  Half me;
  int chunk;

  SEQPAR_DEVICE int64_t token() const { return item.first + int64_t{chunk} * kChunk; }

  /// The matrices overwrite v; with two heads, v has room for one of each head.
  SEQPAR_DEVICE ChunkOperands<T> operands() const {
    T *dA = memory.v(chunk), *a = memory.v(chunk) + kTilePanel;
    if constexpr (kHeads > 1) {
      dA = Products::ofHead(dA, me);
      a = memory.afterBefore(me);
    }
    return {memory.q(chunk),
            memory.k(chunk),
            memory.v(chunk),
            memory.dOut(chunk),
            memory.stateKeys(chunk),
            memory.before,
            memory.after,
            dA,
            a};
  }
  /// A barrier of the warpgroups that share products.
  SEQPAR_DEVICE void sync() const {
    if constexpr (kHeads == 1) {
      Roles::syncConsumers();
    } else {
      Roles::syncOwn(me);
    }
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
    return rowsOf(target, token, keyOffset(target, item), item.keys);
  }
  /// With two heads, the first column in the target is that of the warpgroup's head less its first column in a tile.
  SEQPAR_DEVICE Rows rowsOf(const Target& target, int64_t token, int64_t offset, int columns) const {
    if constexpr (kHeads == 1) {
      return Rows(target, item, token, offset, columns);
    } else {
      return Rows(target, item, token, offset + me.group * (target.head - kPanel),
                  me.group < item.heads ? me.firstColumn + columns : 0);
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
