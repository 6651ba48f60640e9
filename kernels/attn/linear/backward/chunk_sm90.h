// What consumers do with a chunk whatever its decays are; channel_sm90.h and token_sm90.h have the rest.
#pragma once

#include "kernels/attn/linear/backward/scores_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// A chunk as consumers have it.
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

  SEQPAR_WARP int64_t token() const { return item.first + int64_t{chunk} * kChunk; }

  /// The matrices go where v is.
  SEQPAR_WARP ChunkOperands<T> operands() const {
    return {memory.q(chunk), memory.k(chunk), memory.v(chunk), memory.dOut(chunk),          memory.stateKeys(chunk),
            memory.before,   memory.after,    memory.v(chunk), memory.v(chunk) + kTilePanel};
  }
  SEQPAR_WARP void storeMatrices(const ChunkOperands<T>& operands, const Scores& dA, const Scores& a) const {
    Roles::syncConsumers();  // v is not read any more
    Products::store(operands.dA, dA, me);
    Products::store(operands.a, a, me);
  }
  /// dv, which is complete, goes out; then dq and dk are, too.
  SEQPAR_WARP void finishProducts(Part& dq, Part& dk, const Part& dv, int64_t token) {
    Roles::awaitAdded();
    Roles::arriveRead();
    Rows(task.dvOut, item, token, item.keyBlock * task.dvOut.block + item.valueBlock * kBlock, item.values)
        .template writeThrough<T>(memory.dOut(chunk), dv, me);
    me = me.again();
    warpgroup::await<0>();
    warpgroup::settle(dq);
    warpgroup::settle(dk);
    Roles::syncConsumers();  // nor are the matrices, q and k by others
  }
  SEQPAR_WARP Rows rowsOf(const Target& target, int64_t token) const {
    return Rows(target, item, token, keyOffset(target, item), item.keys);
  }
};

}  // namespace seqpar::attn::backward::sm90
