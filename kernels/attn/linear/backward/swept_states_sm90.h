// The consumers' part of the gradients' kernels' sweep: the states before the chunks, and sums of channel decays. Both
// are copied to device memory by threads that load nothing, because a wait for a bulk copy is also one for the thread's
// own cp.async loads.
#pragma once

#include "kernels/attn/linear/backward/channel_producer_sm90.h"
#include "kernels/attn/linear/backward/state_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// kShared, kHeads, kConsumersAdd: as GradientsKernel's.
template <class T, class Producer, bool kChannel, bool kShared, bool kStrong, int kHeads, bool kConsumersAdd>
struct SweptStates {
  using Memory = typename Producer::Memory;
  using StateOf = State<T, Half, kHeads>;

  /// The states of this CTA's segment in device memory.
  SEQPAR_DEVICE static T* statesOf(const Task& task) {
    const int64_t chunks = (task.segmentTokens + kChunk - 1) / kChunk;
    return reinterpret_cast<T*>(task.states) + ptx::block() * chunks * StateOf::kElements;
  }

  /// Computes the segment's end state in `state`. The state before the last chunk stays in its image. Returns false if
  /// the first chunk's decays are strong. `mild`: whether the decays of this thread's channels are.
  SEQPAR_DEVICE static bool compute(const Task& task, const Item<T>& item, StateOf& state, bool& mild,
                                    const Half& place) {
    if (kConsumersAdd && item.chunks > 0) {
      mild = addGates(task, 0, place);
      if (!kStrong && !ptx::syncthreadsAnd(mild)) return false;
      Roles::arriveSummed();
    } else if (kChannel && item.chunks > 0 && !ptx::syncthreadsAnd(true)) {
      return false;
    }
    T* states = statesOf(task);
    for (int i = 0; i < item.chunks; ++i) {
      Memory& memory = opaqueMemory<Memory>();
      const Half me = place.opaque();
      if (me.inGroup == 0) ptx::cpAsyncBulkWaitGroupRead<Memory::kImages - 1>();
      Roles::syncOwn(me);
      const int later = item.chunks - 1 - i;
      state.store(memory.image(later), me);
      if (kConsumersAdd || later > 0) {
        warpgroup::fenceProxyAsync();
        Roles::syncOwn(me);
        if (me.inGroup == 0) {
          if (later > 0) keepImage<kHeads>(states + int64_t{i} * StateOf::kElements, memory.image(later), me);
          if constexpr (kConsumersAdd) memory.decays.keep(task, i, me.group);
          ptx::cpAsyncBulkCommitGroup();
        }
      }
      if (kConsumersAdd && later > 0) {
        mild = addGates(task, i + 1, me) && mild;
        Roles::arriveSummed();
      }
      Roles::awaitPrepared(i);
      if constexpr (kChannel && !kConsumersAdd) {
        if (me.inGroup == 0) {
          memory.decays.keep(task, i, me.group);
          ptx::cpAsyncBulkCommitGroup();
        }
      }
      decay(state, i, memory, me);
      warpgroup::arrive();
      state.add(memory.sweptKeys(i), memory.sweptValues(i), me);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(state.x);
      // Producers replace the decays after `done`.
      if (kChannel && !kConsumersAdd && me.inGroup == 0) ptx::cpAsyncBulkWaitGroupRead<0>();
      Roles::arriveDone(i);
    }
    if (place.inGroup == 0) ptx::cpAsyncBulkWaitGroup();
    Roles::syncOwn(place);
    return true;
  }

  /// Multiplies a state by a chunk's decay.
  SEQPAR_DEVICE static void decay(StateOf& state, int chunk, const Memory& memory, const Half& me) {
    if constexpr (kShared) {
      const float first = decayOf(Producer::total(0, chunk, memory)),
                  second = decayOf(Producer::total(1, chunk, memory));
      if (first != 0 && second != 0) {
        state.template scale<0, kOfHead>(first, first);
        state.template scale<kOfHead, 2 * kOfHead>(second, second);
      } else {
        state.template decay<0, kOfHead>(first, first);
        state.template decay<kOfHead, 2 * kOfHead>(second, second);
      }
    } else {
      const int row = StateOf::row(me);
      const float factor = decayOf(Producer::total(row, chunk, memory)),
                  factor8 = decayOf(Producer::total(row + 8, chunk, memory));
      if (kChannel && !kStrong) {
        state.scale(factor, factor8);  // if not mild, the result is not used
      } else if (!kChannel && factor != 0) {
        state.scale(factor, factor);
      } else {
        state.decay(factor, factor8);
      }
    }
  }

 private:
  static constexpr int kOfHead = StateOf::kTiles8 / 2;  ///< kShared: tiles of the first head's columns

  /// Adds a chunk's gates after they are loaded. Returns whether the decays of this thread's channels are mild or
  /// kStrong.
  SEQPAR_DEVICE static bool addGates(const Task& task, int chunk, const Half& me) {
    if constexpr (kConsumersAdd) {
      Memory& memory = opaqueMemory<Memory>();
      Roles::awaitLoaded();
      return SweptGates<T, kHeads>::template addUp<kStrong>(task, memory.sweptGates(chunk),
                                                            memory.decays.sums[chunk % 2], me.opaque()) ||
             kStrong;
    } else {
      return true;
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
