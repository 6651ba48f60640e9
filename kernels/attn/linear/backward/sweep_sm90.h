// One pass over a segment that makes its map, state and log-decay: forward of k and v, reverse of q and dOut.
#pragma once

#include "kernels/attn/linear/backward/gates_sm90.h"
#include "kernels/attn/linear/backward/state_sm90.h"

namespace seqpar::attn::backward::sm90 {

constexpr int kItemBytes = 128;

/// Shared memory that a sweep works in. One chunk's tiles arrive while another's are worked on.
template <class T, class P>
struct SweepTiles {
  T *keys, *values;          ///< two of each
  ChannelSums<P>* channels;  ///< decays of channels
  float* sums;               ///< of tokens, for two chunks
  uint8_t* forgets;          ///< written, not read

  SEQPAR_WARP T* keysOf(int step) const { return keys + step % 2 * kTile; }
  SEQPAR_WARP T* valuesOf(int step) const { return values + step % 2 * kTile; }
  SEQPAR_WARP float* sumsOf(int step) const { return sums + step % 2 * kChunk; }
};

template <class T, bool kChannel, bool kReverse, class P>
struct Sweep {
  using Tiles = SweepTiles<T, P>;
  using StateOf = State<T, P>;

  SEQPAR_WARP static int64_t tokenOf(const Item<T>& item, int step) {
    return item.first + int64_t{kReverse ? item.chunks - 1 - step : step} * kChunk;
  }
  SEQPAR_WARP static void fetch(const Task& task, const Item<T>& item, int step, const Tiles& tiles, int thread) {
    if (step < item.chunks) {
      const int64_t token = tokenOf(item, step);
      const int rows = item.rowsOf(token);
      const Input& keys = kReverse ? task.q : task.k;
      const Input& values = kReverse ? task.dOut : task.v;
      fetchRows<kChunk, P::kThreads>(tiles.keysOf(step), (kReverse ? item.q : item.k) + token * keys.token, keys.token,
                                     rows, item.keys, thread);
      fetchRows<kChunk, P::kThreads>(tiles.valuesOf(step), (kReverse ? item.dOut : item.v) + token * values.token,
                                     values.token, rows, item.values, thread);
    }
    warp::commitCopies();
  }
  SEQPAR_WARP static void fetchGates(const Task& task, const Item<T>& item, int step, const Tiles& tiles, const P& me) {
    if constexpr (kChannel) {
      if (step < item.chunks) tiles.channels->fetch(task, item, tokenOf(item, step), me);
      warp::commitCopies();
    }
  }

  /// Leaves the segment's end state in `state`. `keep`: gets the state before each chunk, by rows; NULL: not wanted.
  /// logDecay, to base 2: of channels, that of channel inGroup % kOwn of the warpgroup's. Gives whether no chunk decays
  /// by less than 2^leastTotal in any channel of this thread.
  SEQPAR_WARP static bool run(const Task& task, const Item<T>& item, const Tiles& tiles, StateOf& state, T* keep,
                              float& logDecay, float leastTotal, const P& place) {
    P me = place;
    logDecay = 0;
    bool mild = true;
    fetch(task, item, 0, tiles, me.thread);
    fetchGates(task, item, 0, tiles, me);
    TokenLogs logs;
    const bool adds = !kChannel && me.thread < 32;
    if (adds && item.chunks > 0) {
      logs.load(task, item, tokenOf(item, 0), me.lane);
      logs.addUp(task, tokenOf(item, 0), tiles.sums, tiles.forgets, me.lane);
    }
    for (int step = 0; step < item.chunks; ++step) {
      me = place.again();
      const int64_t token = tokenOf(item, step);
      T* keys = tiles.keysOf(step);
      const bool more = adds && step + 1 < item.chunks;
      warp::awaitCopies<0>();
      warpgroup::publish();
      warp::syncBlock();
      fetch(task, item, step + 1, tiles, me.thread);
      if (more) logs.load(task, item, tokenOf(item, step + 1), me.lane);
      if (keep != nullptr) state.storeRows(keep + int64_t{step} * kMatrix, me);
      float factor, factor8;
      if constexpr (kChannel) {
        ChannelSums<P>& channels = *tiles.channels;
        channels.addUp(task, task.startCount > 0 ? beginsOf(task, token) : 0, me);
        scaleByChannels(task, keys, channels, me);
        factor = channels.total(StateOf::row(me));
        factor8 = channels.total(StateOf::row(me) + 8);
        const float total = channels.total(me.firstColumn + me.inGroup % P::kOwn);
        logDecay += total;
        mild = mild && total >= leastTotal;
      } else {
        const float* sums = tiles.sumsOf(step);
        scaleByTokens(task, keys, sums, me);
        factor = factor8 = sums[kChunk - 1];
        logDecay += factor;
      }
      state.decay(decayOf(factor), decayOf(factor8));
      warpgroup::publish();
      me.syncState();
      fetchGates(task, item, step + 1, tiles, me);
      warpgroup::begin();
      state.add(keys, tiles.valuesOf(step), me);
      warpgroup::commit();
      if (more) {
        logs.addUp(task, tokenOf(item, step + 1), tiles.sumsOf(step + 1), tiles.forgets, me.lane);
      }
      warpgroup::await<0>();
      warpgroup::settle(state.x);
    }
    warp::awaitCopies<0>();
    return mild;
  }

 private:
  /// Keys times their decay to the chunk's end, queries times their decay from its beginning.
  SEQPAR_WARP static void scaleByChannels(const Task& task, T* keys, const ChannelSums<P>& channels, const P& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < P::kTiles8; ++n) {
      float total[2] = {0, 0};
      if (!kReverse) warp::loadPair(channels.totals + me.column(n), total[0], total[1]);
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        float sum[2];
        channels.load(sum[0], sum[1], n, r, me);
        const float low = decayOf(kReverse ? sum[0] : total[0] - sum[0]),
                    high = decayOf(kReverse ? sum[1] : total[1] - sum[1]);
        scale(task, pairAt(keys, n, r, me), low, high);
      }
    }
  }
  SEQPAR_WARP static void scaleByTokens(const Task& task, T* keys, const float* sums, const P& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float sum = sums[me.row + r * 8], factor = decayOf(kReverse ? sum : sums[kChunk - 1] - sum);
      SEQPAR_UNROLL
      for (int n = 0; n < P::kTiles8; ++n) {
        scale(task, pairAt(keys, n, r, me), factor, factor);
      }
    }
  }
  SEQPAR_WARP static void scale(const Task& task, uint32_t* at, float low, float high) {
    const float all = kReverse ? task.scale : 1.f;
    *at = warp::pack<T>(warp::lowOf<T>(*at) * low * all, warp::highOf<T>(*at) * high * all);
  }
};

using MapsPlace = Place<2>;

template <class T, bool kChannel>
struct MapsMemory {
  T keys[2][kTile], values[2][kTile];
  alignas(16) char channels[kChannel ? sizeof(ChannelSums<MapsPlace>) : 16];
  float sums[2][kChunk];
  uint8_t forgets[kChunk];
  alignas(16) char item[kItemBytes];
};

/// The item, in shared memory: in registers it would displace numbers.
template <class T>
SEQPAR_WARP const Item<T>& itemAt(char* memory, const Task& task, int64_t index, int thread) {
  static_assert(sizeof(Item<T>) <= kItemBytes);
  auto* item = reinterpret_cast<Item<T>*>(memory);
  warp::syncBlock();  // the one before is done
  if (thread == 0) *item = Item<T>(task, index);
  warp::syncBlock();
  return *item;
}

SEQPAR_WARP int64_t itemsIn(const Task& task) {
  return int64_t{task.batch} * task.headCount * task.keyBlocks * task.valueBlocks * task.segments;
}

/// The kernel: each CTA makes the maps of the items that fall to it.
template <class T, bool kChannel>
SEQPAR_WARP void segmentMaps(const Task& task) {
  auto& memory = *reinterpret_cast<MapsMemory<T, kChannel>*>(warp::sharedMemory());
  const SweepTiles<T, MapsPlace> tiles{memory.keys[0], memory.values[0],
                                       reinterpret_cast<ChannelSums<MapsPlace>*>(memory.channels), memory.sums[0],
                                       memory.forgets};
  const MapsPlace me;
  for (int64_t index = warp::block(); index < itemsIn(task); index += warp::blocks()) {
    const Item<T>& item = itemAt<T>(memory.item, task, index, me.thread);
    State<T, MapsPlace> state;
    state.clear();
    float logDecay;
    Sweep<T, kChannel, true, MapsPlace>::run(task, item, tiles, state, nullptr, logDecay, 0, me);
    state.storeFull(task.maps.states + item.map * task.dk * task.dv + item.stateOffset(task), task.dv, item.keys,
                    item.values, me);
    if (item.valueBlock != 0) continue;
    const int channel = me.firstColumn + me.inGroup;
    if (kChannel && me.inGroup < MapsPlace::kOwn && channel < item.keys) {
      task.maps.logDecays[item.map * task.dk + item.keyBlock * kBlock + channel] = logDecay * kLn2;
    }
    if (!kChannel && me.thread == 0 && item.keyBlock == 0) task.maps.logDecays[item.map] = logDecay * kLn2;
  }
}

}  // namespace seqpar::attn::backward::sm90
