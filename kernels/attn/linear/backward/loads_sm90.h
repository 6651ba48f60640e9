// Tiles of a chunk that one producer thread loads with the TMA, for the sm_90 gradients' kernels with token decays:
// shared memory, mbarriers and the producers' sweep.
#pragma once

#include "kernels/arch/tma.h"
#include "kernels/attn/linear/backward/mapped_task_sm90.h"
#include "kernels/attn/linear/backward/memory_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// mbarriers of loads, one phase per load.
enum TileLoad {
  kState = 0,   ///< the state before a chunk
  kStages = 1,  ///< 1, 2: tiles of an even or odd chunk
  kSwept = 3,   ///< 3 to 6: keys and values in the sweep, of chunks with the same remainder by 4
  kTileLoads = 7,
};

/// In the sweep, keys and values have four stages. kHeads: heads of an item. With two, a panel of values is a head.
template <class T, int kHeads>
struct LoadedTiles : ChunkTiles<T> {
  static constexpr int kImages = 2;  ///< of states in the sweep
  alignas(8) uint64_t loads[kTileLoads];

  SEQPAR_DEVICE T* sweptKeys(int chunk) { return this->tiles[chunk % 4 * 2]; }
  SEQPAR_DEVICE T* sweptValues(int chunk) { return this->tiles[chunk % 4 * 2 + 1]; }
  SEQPAR_DEVICE T* image(int later) { return later % 2 == 0 ? this->before : this->after; }  ///< `later`: chunks
  SEQPAR_DEVICE uint32_t load(int which) const { return ptx::sharedAddress(loads + which); }
  SEQPAR_DEVICE void initLoads() const {
    for (int i = 0; i < kTileLoads; ++i) ptx::mbarrierInit(load(i), 1);
    ptx::fenceMbarrierInit();
  }
  /// The following are called by one thread, after barriers of all threads that used the destination.
  SEQPAR_DEVICE void fetchSwept(const MappedTask& task, const Item<T>& of, int chunk) {
    const int token = static_cast<int>(of.first) + chunk * kChunk;
    const uint32_t barrier = load(kSwept + chunk % 4);
    warpgroup::fenceProxyAsync();
    ptx::mbarrierArriveExpectTx(barrier, 2 * kTile * int{sizeof(T)});
    fetchKeys(task.keys, sweptKeys(chunk), task, of, token, barrier);
    fetchValues(task.values, sweptValues(chunk), of, token, barrier);
  }
  SEQPAR_DEVICE void fetchTiles(const MappedTask& task, const Item<T>& of, int chunk) {
    const int token = static_cast<int>(of.first) + chunk * kChunk;
    const uint32_t barrier = load(kStages + chunk % 2);
    warpgroup::fenceProxyAsync();
    ptx::mbarrierArriveExpectTx(barrier, 4 * kTile * int{sizeof(T)});
    fetchKeys(task.queries, this->q(chunk), task, of, token, barrier);
    fetchKeys(task.keys, this->k(chunk), task, of, token, barrier);
    fetchValues(task.values, this->v(chunk), of, token, barrier);
    fetchValues(task.outputs, this->dOut(chunk), of, token, barrier);
  }
  SEQPAR_DEVICE void fetchState(const T* states, int chunk) {
    ptx::mbarrierArriveExpectTx(load(kState), kMatrix * int{sizeof(T)});
    ptx::cpAsyncBulkLoad(this->before, states + int64_t{chunk} * kMatrix, kMatrix * int{sizeof(T)}, load(kState));
  }

 private:
  SEQPAR_DEVICE static void fetchKeys(const CUtensorMap& map, T* to, const Task& task, const Item<T>& of, int token,
                                      uint32_t barrier) {
    SEQPAR_UNROLL
    for (int panel = 0; panel < 2; ++panel) {
      ptx::tmaLoad(ptx::sharedAddress(to + panel * kTilePanel), map, barrier, of.keyBlock * kBlock + panel * kPanel,
                   of.head / task.group, token, of.sequence);
    }
  }
  SEQPAR_DEVICE static void fetchValues(const CUtensorMap& map, T* to, const Item<T>& of, int token, uint32_t barrier) {
    SEQPAR_UNROLL
    for (int panel = 0; panel < 2; ++panel) {
      const int head = kHeads == 1 ? 0 : panel, column = of.valueBlock * kBlock + (kHeads == 1 ? panel * kPanel : 0);
      ptx::tmaLoad(ptx::sharedAddress(to + panel * kTilePanel), map, barrier, column, of.head + head, token,
                   of.sequence);
    }
  }
};

/// A producer's view of the loads: the parities of their next phases.
struct LoadPhases {
  uint32_t parities = 0;

  template <class Memory>
  SEQPAR_DEVICE void await(const Memory& memory, int which) {
    ptx::mbarrierWaitParity(memory.load(which), static_cast<int>(parities >> which & 1));
    parities ^= 1u << which;
  }
};

/// Producers: zeroes the rows of a tile from `rows` on, which may belong to another sequence.
template <class T>
SEQPAR_DEVICE void clearRows(T* tile, int rows, int thread) {
  constexpr uint32_t kZeros[4] = {0, 0, 0, 0};
  for (int unit = thread; unit < kTile / 8; unit += Half::kThreads) {
    if (unit / 8 % kChunk >= rows) ptx::store(tile + unit * 8, kZeros);
  }
}

/// Producers: the sweep over a segment. Loads keys and values two chunks ahead.
template <class Producer>
SEQPAR_DEVICE void sweepTokens(const MappedTask& task, const typename Producer::ItemOf& item, LoadPhases& phases,
                               const Half& place) {
  using Memory = typename Producer::Memory;
  constexpr int kAhead = 2;
  Half me = place;
  Producer producer;
  const auto fetch = [&](int chunk) {
    if (me.thread == 0 && chunk < item.chunks) opaqueMemory<Memory>().fetchSwept(task, item, chunk);
  };
  for (int i = 0; i < kAhead; ++i) fetch(i);
  if (item.chunks > 0) producer.load(task, item, 0, me);
  for (int i = 0; i < item.chunks; ++i) {
    Memory& memory = opaqueMemory<Memory>();
    me = place.opaque();
    if (i >= kAhead) Roles::awaitDone(i - kAhead);
    fetch(i + kAhead);
    producer.addUp(task, item, i, memory, me);
    if (i + 1 < item.chunks) producer.load(task, item, i + 1, me);
    phases.await(memory, kSwept + i % 4);
    const int rows = item.rowsOf(item.first + int64_t{i} * kChunk);
    if (rows < kChunk) {
      clearRows(memory.sweptKeys(i), rows, me.thread);
      clearRows(memory.sweptValues(i), rows, me.thread);
    }
    Roles::syncProducers();
    Producer::scaleSwept(i, memory, me.opaque());
    warpgroup::fenceProxyAsync();
    Roles::arrivePrepared(i);
  }
  if (item.chunks > 1) Roles::awaitDone(item.chunks - 2);
  if (item.chunks > 0) Roles::awaitDone(item.chunks - 1);
}
/// Producers: waits for a chunk's tiles.
template <class T, class Memory>
SEQPAR_DEVICE void awaitTiles(const Item<T>& item, int chunk, Memory& memory, LoadPhases& phases, const Half& me) {
  phases.await(memory, kStages + chunk % 2);
  const int rows = item.rowsOf(item.first + int64_t{chunk} * kChunk);
  if (rows == kChunk) return;
  clearRows(memory.q(chunk), rows, me.thread);
  clearRows(memory.k(chunk), rows, me.thread);
  clearRows(memory.v(chunk), rows, me.thread);
  clearRows(memory.dOut(chunk), rows, me.thread);
}

}  // namespace seqpar::attn::backward::sm90
