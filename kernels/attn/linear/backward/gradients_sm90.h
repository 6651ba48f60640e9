// All gradients of a segment, in one CTA of four warpgroups: what gradients.h does, with products of warpgroups.
// Segments of which a chunk decays too much are left to gradients.h.
#pragma once

#include "kernels/attn/linear/backward/channel_sm90.h"
#include "kernels/attn/linear/backward/token_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, bool kChannel>
struct GradientsKernel {
  using Chunk = std::conditional_t<kChannel, ChannelChunk<T>, TokenChunk<T>>;
  using Memory = typename Chunk::Memory;
  using P = GradientsPlace;
  using StateOf = State<T, P>;
  static_assert(sizeof(Memory) <= 232448);  // what a CTA can have

  /// Keeps the states before the segment's chunks. Gives whether all threads found its decays mild.
  SEQPAR_WARP static bool sweep(const Task& task, const Item<T>& item, Memory& memory, StateOf& state, T* states,
                                const P& me) {
    SweepTiles<T, P> tiles{memory.k[0], memory.v[0], nullptr, nullptr, nullptr};
    float leastTotal = 0, logDecay;
    if constexpr (kChannel) {
      tiles.channels = &memory.gates;
      leastTotal = Chunk::kLeastTotal;
    } else {
      tiles.sums = memory.sums[0];
      tiles.forgets = memory.forgets[0];
    }
    const bool mild = Sweep<T, kChannel, false, P>::run(task, item, tiles, state, states, logDecay, leastTotal, me);
    return warp::allOfBlock(mild || !kChannel);
  }

  SEQPAR_WARP static void run(const Task& task) {
    auto& memory = *reinterpret_cast<Memory*>(warp::sharedMemory());
    const P me;
    const int64_t chunks = (task.segmentTokens + kChunk - 1) / kChunk;
    T* states = reinterpret_cast<T*>(task.states) + warp::block() * chunks * kMatrix;
    const int width = kChannel ? task.dk : 1;
    for (int64_t index = warp::block(); index < itemsIn(task); index += warp::blocks()) {
      const Item<T>& item = itemAt<T>(memory.item, task, index, me.thread);
      const int64_t rows = kChannel ? item.keyBlock * kBlock : 0;
      const int64_t whole =
          (int64_t{item.sequence} * task.heads + item.head) * task.dk * task.dv + item.stateOffset(task);
      const int64_t part = item.map * task.dk * task.dv + item.stateOffset(task);
      const auto from = [](const float* all, int64_t offset) { return all == nullptr ? nullptr : all + offset; };
      StateOf state, gradient;
      state.loadFull(item.segment > 0 ? task.before.states + part : nullptr,
                     task.before.logDecays + (item.map - item.segment) * width + rows, item.segment, width,
                     from(task.initial, whole), task.dv, item.keys, item.values, me.again());
      const bool mild = sweep(task, item, memory, state, states, me.again());
      if (kChannel && me.thread == 0) task.strong[index] = mild ? 0 : 1;
      if (!mild) continue;
      if (item.chunks > 0) Chunk::fetchFirst(task, item, memory, me.again());
      gradient.loadFull(task.after.states + part, task.after.logDecays + item.map * width + rows, 1, width,
                        from(task.finalGradient, whole), task.dv, item.keys, item.values, me.again());
      float sums[2];
      gradient.rowSums(sums, state);
      if constexpr (kChannel) {
        Chunk::storeCarry(memory, sums, me.again());
      } else {
        Chunk::storeCarry(memory, item.chunks - 1, sums, me.again());
      }
      for (int i = item.chunks - 1; i >= 0; --i) Chunk::run(task, item, i, states, memory, gradient, me.again());
      if constexpr (!kChannel) {
        warp::syncBlock();
        if (item.chunks > 0) Chunk::writeGates(task, item, 0, memory, me);
      }
      if (item.segment == 0 && task.dInitial != nullptr) {
        gradient.storeFull(task.dInitial + whole, task.dv, item.keys, item.values, me.again());
      }
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
