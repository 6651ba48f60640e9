// Pass 1 of the backward on sm_90a: one pass over a segment that computes its map of gradients, state and log-decay,
// from q and dOut, for cases that the kernels of ../forward_sm90 do not support.
//
// Work      a CTA of 256 threads, two per SM, takes items (sequence, head, 128 channels, 128 columns, segment) in steps
//           of the grid
// Roles     two warpgroups alike: each loads, decays its half of the channels, and has 64 rows of the state
// Tiles     chunks of 64 tokens x 128; the state 128 x 128 fp32 in registers
// Smem      MapsMemory: two stages of q and dO (16 KiB each), decays, the item
// Barriers  __syncthreads(): a chunk is loaded, and the chunk before it is free. warpgroup::sync(): a warpgroup's
//           queries are decayed.
// Overlap   cp.async loads one chunk ahead. No overlap with other kernels
#pragma once

#include "kernels/attn/linear/backward/gates_sm90.h"
#include "kernels/attn/linear/backward/state_sm90.h"

namespace seqpar::attn::backward::sm90 {

constexpr int kItemBytes = 128;

/// Shared memory of a sweep. One chunk's tiles are loaded while another's are processed.
template <class T, class P>
struct SweepTiles {
  T *queries, *outputs;      ///< two of each
  ChannelSums<P>* channels;  ///< decays of channels
  float* sums;               ///< of tokens, for two chunks
  uint8_t* forgets;          ///< written, never read

  SEQPAR_DEVICE T* queriesOf(int step) const { return queries + step % 2 * kTile; }
  SEQPAR_DEVICE T* outputsOf(int step) const { return outputs + step % 2 * kTile; }
  SEQPAR_DEVICE float* sumsOf(int step) const { return sums + step % 2 * kChunk; }
};

template <class T, bool kChannel, class P>
struct Sweep {
  using Tiles = SweepTiles<T, P>;
  using StateOf = State<T, P>;

  SEQPAR_DEVICE static int64_t tokenOf(const Item<T>& item, int step) {
    return item.first + int64_t{item.chunks - 1 - step} * kChunk;
  }
  SEQPAR_DEVICE static void fetch(const Task& task, const Item<T>& item, int step, const Tiles& tiles, int thread) {
    if (step < item.chunks) {
      const int64_t token = tokenOf(item, step);
      const int rows = item.rowsOf(token);
      fetchRows<kChunk, P::kThreads>(tiles.queriesOf(step), item.q + token * task.q.token, task.q.token, rows,
                                     item.keys, thread);
      fetchRows<kChunk, P::kThreads>(tiles.outputsOf(step), item.dOut + token * task.dOut.token, task.dOut.token, rows,
                                     item.values, thread);
    }
    ptx::cpAsyncCommitGroup();
  }
  SEQPAR_DEVICE static void fetchGates(const Task& task, const Item<T>& item, int step, const Tiles& tiles,
                                       const P& me) {
    if constexpr (kChannel) {
      if (step < item.chunks) tiles.channels->fetch(task, item, tokenOf(item, step), me);
      ptx::cpAsyncCommitGroup();
    }
  }

  /// Computes the segment's end state in `state`. logDecay, to base 2: with channel decays, of the warpgroup's channel
  /// inGroup % kOwn.
  SEQPAR_DEVICE static void run(const Task& task, const Item<T>& item, const Tiles& tiles, StateOf& state,
                                float& logDecay, const P& place) {
    P me = place;
    logDecay = 0;
    fetch(task, item, 0, tiles, me.thread);
    fetchGates(task, item, 0, tiles, me);
    TokenLogs logs;
    const bool adds = !kChannel && me.thread < 32;
    if (adds && item.chunks > 0) {
      logs.load(task, item, tokenOf(item, 0), me.lane);
      logs.addUp(tiles.sums, tiles.forgets, me.lane);
    }
    for (int step = 0; step < item.chunks; ++step) {
      me = place.opaque();
      T* queries = tiles.queriesOf(step);
      const bool more = adds && step + 1 < item.chunks;
      ptx::cpAsyncWaitGroup<0>();
      warpgroup::fenceProxyAsync();
      ptx::syncthreads();
      fetch(task, item, step + 1, tiles, me.thread);
      if (more) logs.load(task, item, tokenOf(item, step + 1), me.lane);
      float factor, factor8;
      if constexpr (kChannel) {
        ChannelSums<P>& channels = *tiles.channels;
        channels.addUp(task, me);
        scaleByChannels(task, queries, channels, me);
        factor = channels.total(StateOf::row(me));
        factor8 = channels.total(StateOf::row(me) + 8);
        logDecay += channels.total(me.firstColumn + me.inGroup % P::kOwn);
      } else {
        const float* sums = tiles.sumsOf(step);
        scaleByTokens(task, queries, sums, me);
        factor = factor8 = sums[kChunk - 1];
        logDecay += factor;
      }
      state.decay(decayOf(factor), decayOf(factor8));
      warpgroup::fenceProxyAsync();
      me.syncState();
      fetchGates(task, item, step + 1, tiles, me);
      warpgroup::arrive();
      state.add(queries, tiles.outputsOf(step), me);
      warpgroup::commit();
      if (more) {
        logs.addUp(tiles.sumsOf(step + 1), tiles.forgets, me.lane);
      }
      warpgroup::wait<0>();
      warpgroup::fenceOperand(state.x);
    }
    ptx::cpAsyncWaitGroup<0>();
  }

 private:
  /// Multiplies queries by their decay from the chunk's start.
  SEQPAR_DEVICE static void scaleByChannels(const Task& task, T* queries, const ChannelSums<P>& channels, const P& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < P::kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        float low, high;
        channels.load(low, high, n, r, me);
        scale(task, pairAt(queries, n, r, me), decayOf(low), decayOf(high));
      }
    }
  }
  SEQPAR_DEVICE static void scaleByTokens(const Task& task, T* queries, const float* sums, const P& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float factor = decayOf(sums[me.row + r * 8]);
      SEQPAR_UNROLL
      for (int n = 0; n < P::kTiles8; ++n) {
        scale(task, pairAt(queries, n, r, me), factor, factor);
      }
    }
  }
  SEQPAR_DEVICE static void scale(const Task& task, uint32_t* at, float low, float high) {
    *at = ptx::pack<T>(ptx::lowOf<T>(*at) * low * task.scale, ptx::highOf<T>(*at) * high * task.scale);
  }
};

using MapsPlace = Place<2>;

template <class T, bool kChannel>
struct MapsMemory {
  T queries[2][kTile], outputs[2][kTile];
  alignas(16) char channels[kChannel ? sizeof(ChannelSums<MapsPlace>) : 16];
  float sums[2][kChunk];
  uint8_t forgets[kChunk];
  alignas(16) char item[kItemBytes];
};
constexpr int kMapsCtas = 2;  ///< per SM
// An SM has 1 KiB more than a CTA can use, and reserves 1 KiB per CTA.
static_assert(kMapsCtas * (sizeof(MapsMemory<Bf16, true>) + 1024) <= ptx::kSharedBytesSm90 + 1024);

/// The items of a CTA, in steps of the grid. kWide: all blocks of keys of a segment, one after the other.
template <bool kWide>
SEQPAR_DEVICE int64_t firstItem(const Task& task) {
  return kWide ? int64_t{ptx::block()} * task.keyBlocks : ptx::block();
}
template <bool kWide>
SEQPAR_DEVICE int64_t nextItem(const Task& task, int64_t index) {
  if (!kWide) return index + ptx::blocks();
  const int64_t next = index + 1;
  return next % task.keyBlocks != 0 ? next : next + (int64_t{ptx::blocks()} - 1) * task.keyBlocks;
}

/// The item is in shared memory, because it would occupy registers.
template <class T>
SEQPAR_DEVICE const Item<T>& itemAt(char* memory, const Task& task, int64_t index, int thread) {
  static_assert(sizeof(Item<T>) <= kItemBytes);
  auto* item = reinterpret_cast<Item<T>*>(memory);
  ptx::syncthreads();  // the previous item is done
  if (thread == 0) *item = Item<T>(task, index);
  ptx::syncthreads();
  return *item;
}

/// The kernel: each CTA computes the maps of its items.
template <class T, bool kChannel>
SEQPAR_DEVICE void segmentMaps(const Task& task) {
  auto& memory = *reinterpret_cast<MapsMemory<T, kChannel>*>(ptx::sharedMemory());
  const SweepTiles<T, MapsPlace> tiles{memory.queries[0], memory.outputs[0],
                                       reinterpret_cast<ChannelSums<MapsPlace>*>(memory.channels), memory.sums[0],
                                       memory.forgets};
  const MapsPlace me;
  for (int64_t index = ptx::block(); index < itemsOf(task); index += ptx::blocks()) {
    const Item<T>& item = itemAt<T>(memory.item, task, index, me.thread);
    State<T, MapsPlace> state;
    state.clear();
    float logDecay;
    Sweep<T, kChannel, MapsPlace>::run(task, item, tiles, state, logDecay, me);
    state.storeFull(task.maps.states + item.map * task.dk * task.dv + item.stateOffset(task), task.dv, item.keys,
                    item.values, me);
    if (item.valueBlock != 0) continue;
    if (item.ends()) logDecay = -INFINITY;
    const int channel = me.firstColumn + me.inGroup;
    if (kChannel && me.inGroup < MapsPlace::kOwn && channel < item.keys) {
      task.maps.transitions[item.map * task.dk + item.keyBlock * kBlock + channel] = logDecay * kLn2;
    }
    if (!kChannel && me.thread == 0 && item.keyBlock == 0) task.maps.transitions[item.map] = logDecay * kLn2;
  }
}

/// Whether the item's gradient of the initial state is stored, and where.
template <class T>
SEQPAR_DEVICE bool storesInitial(const Task& task, const Item<T>& item) {
  return item.isFirst() && task.dInitial != nullptr;
}
template <class T>
SEQPAR_DEVICE float* initialOf(const Task& task, const Item<T>& item) {
  const int64_t head = int64_t{item.sequence} * task.heads + item.head;
  return task.dInitial + head * task.dk * task.dv + item.stateOffset(task);
}

}  // namespace seqpar::attn::backward::sm90
