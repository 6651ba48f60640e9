// What producers of the gradients' kernels do with decays of channels (channel_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/memory_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct ChannelProducer {
  using Memory = ChannelMemory<T>;
  using Decays = ChannelDecays<T>;
  static constexpr bool kDecaysFirst = true;  ///< the state's gradient becomes an operand with the chunk's decay
  static constexpr int kBatch = 4;            ///< accumulator tiles whose words are read before any is written

  /// Gates are a chunk ahead, then keys and values. Keeps the sums of the decays for the chunks' gradients. Gives
  /// whether this thread found the segment's decays mild.
  SEQPAR_WARP static bool sweep(const Task& task, const Item<T>& item, const Half& place) {
    bool mild = true;
    if (item.chunks == 0) return mild;
    SweptGates<T>::fetch(memoryAgain<Memory>().sweptGates(0), task, item, 0, place);
    warp::commitCopies();
    memoryAgain<Memory>().fetchSwept(task, item, 0, place.thread);
    warp::commitCopies();
    for (int i = 0; i < item.chunks; ++i) {
      Memory& memory = memoryAgain<Memory>();
      Half me = place.again();
      const bool more = i + 1 < item.chunks;
      if (more) SweptGates<T>::fetch(memory.sweptGates(i + 1), task, item, i + 1, me);
      warp::commitCopies();
      warp::awaitCopies<2>();
      warp::syncWarp();
      me = me.again();
      mild = SweptGates<T>::addUp(task, memory.sweptGates(i), memory.decays.sums[i % 2], me) && mild;
      if (i > 0) Roles::awaitDone(i - 1);
      me = me.again();
      if (more) memory.fetchSwept(task, item, i + 1, me.thread);
      warp::commitCopies();
      if (me.thread == 0) warp::awaitBulkRead<0>();  // the next chunk's sums take the place of those before this one's
      warp::awaitCopies<2>();
      warpgroup::publish();
      Roles::syncProducers();
      if (me.thread == 0) {
        warp::storeBulk(Decays::kept(task, i), &memory.decays.sums[i % 2], kDecaySumsBytes);
        warp::commitBulk();
      }
      scaleSwept(i, memory, me.again());
      warpgroup::publish();
      Roles::arrivePrepared(i);
    }
    Roles::awaitDone(item.chunks - 1);
    if (place.thread == 0) warp::awaitBulk();
    return mild;
  }

  /// Decays are as the sweep left them.
  SEQPAR_WARP static void load(const Task&, const Item<T>&, int, const Half&) {}
  SEQPAR_WARP static void addUp(const Task&, const Item<T>&, int, Memory&, const Half&) {}
  /// Keys times their decay to the chunk's end.
  SEQPAR_WARP static void scaleSwept(int chunk, Memory& memory, const Half& me) {
    T* keys = memory.sweptKeys(chunk);
    SEQPAR_UNROLL
    for (int first = 0; first < Half::kTiles8; first += kBatch) {
      uint32_t ks[kBatch / 2][4], sums[kBatch / 2][4];
      SEQPAR_UNROLL
      for (int j = 0; j < kBatch / 2; ++j) {
        loadTiles(ks[j], keys, first + j * 2, me);
        memory.decays.load(sums[j], chunk, first + j * 2, me);
      }
      SEQPAR_UNROLL
      for (int j = 0; j < kBatch / 2; ++j) {
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          float low, high;
          warp::loadPair(memory.decays.sums[chunk % 2].totals + me.column(first + j * 2 + i / 2), low, high);
          ks[j][i] = warp::pack<T>(warp::lowOf<T>(ks[j][i]) * decayOf(low - Decays::lowOf(sums[j][i])),
                                   warp::highOf<T>(ks[j][i]) * decayOf(high - Decays::highOf(sums[j][i])));
        }
        storeTiles(keys, first + j * 2, ks[j], me);
      }
    }
  }
  /// q becomes q p scale, k becomes k / p.
  SEQPAR_WARP static void scale(const Task& task, int chunk, Memory& memory, const Half& me) {
    T *q = memory.q(chunk), *k = memory.k(chunk);
    SEQPAR_UNROLL
    for (int first = 0; first < Half::kTiles8; first += kBatch) {
      uint32_t qs[kBatch / 2][4], ks[kBatch / 2][4], sums[kBatch / 2][4];
      SEQPAR_UNROLL
      for (int j = 0; j < kBatch / 2; ++j) {
        loadTiles(qs[j], q, first + j * 2, me);
        loadTiles(ks[j], k, first + j * 2, me);
        memory.decays.load(sums[j], chunk, first + j * 2, me);
      }
      SEQPAR_UNROLL
      for (int j = 0; j < kBatch / 2; ++j) {
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float low = warp::exp2(Decays::lowOf(sums[j][i])), high = warp::exp2(Decays::highOf(sums[j][i]));
          qs[j][i] = warp::pack<T>(warp::lowOf<T>(qs[j][i]) * (task.scale * low),
                                   warp::highOf<T>(qs[j][i]) * (task.scale * high));
          ks[j][i] = warp::pack<T>(warp::lowOf<T>(ks[j][i]) * warp::reciprocal(low),
                                   warp::highOf<T>(ks[j][i]) * warp::reciprocal(high));
        }
        storeTiles(q, first + j * 2, qs[j], me);
        storeTiles(k, first + j * 2, ks[j], me);
      }
    }
  }
  SEQPAR_WARP static void copyScaled(const Task&, int, Memory&, const Half&) {}
  SEQPAR_WARP static const T* queries(int chunk, Memory& memory) { return memory.q(chunk); }

  /// The log-decays of a state's row over the chunk.
  SEQPAR_WARP static float total(int row, int chunk, const Memory& memory) {
    return memory.decays.sums[chunk % 2].totals[row];
  }

  /// Row sums of S * E, of which each of four lanes has a part, become what the gates of a chunk get from after it.
  SEQPAR_WARP static void storeCarry(Memory& memory, int chunk, float (&sums)[2], const Half& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sums[r] += warp::shuffleXor(sums[r], 1);
      sums[r] += warp::shuffleXor(sums[r], 2);
      if (me.c == 0) memory.carry[chunk & 1][State<T, Half>::row(me) + r * 8] = sums[r];
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
