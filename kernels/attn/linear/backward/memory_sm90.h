// Shared memory of the sm_90 gradients' kernels, and the tiles of a chunk that they load.
#pragma once

#include "kernels/attn/linear/backward/channel_decays_sm90.h"
#include "kernels/attn/linear/backward/roles_sm90.h"
#include "kernels/attn/linear/backward/sweep_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// Tiles have two stages. kHeads: with two, a panel of a tile is a head, and the states, 64 x 64 each, are in the first
/// half of `before` and `after`.
template <class T, int kHeads = 1>
struct ChunkTiles {
  T tiles[8][kTile];
  T before[kMatrix], after[kMatrix];  ///< the states S and E

  SEQPAR_DEVICE T* q(int chunk) { return tiles[chunk % 2]; }
  SEQPAR_DEVICE T* k(int chunk) { return tiles[2 + chunk % 2]; }
  SEQPAR_DEVICE T* v(int chunk) { return tiles[4 + chunk % 2]; }
  SEQPAR_DEVICE T* dOut(int chunk) { return tiles[6 + chunk % 2]; }

  SEQPAR_DEVICE void fetchKeys(const Task& task, const Item<T>& item, int chunk, const Half& me) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token);
    fetch<true>(q(chunk), item.q, task.q, task, item, token, rows, me);
    fetch<true>(k(chunk), item.k, task.k, task, item, token, rows, me);
  }
  SEQPAR_DEVICE void fetchValues(const Task& task, const Item<T>& item, int chunk, const Half& me) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token);
    fetch<false>(v(chunk), item.v, task.v, task, item, token, rows, me);
    fetch<false>(dOut(chunk), item.dOut, task.dOut, task, item, token, rows, me);
  }
  SEQPAR_DEVICE static void fetchSwept(T* keys, T* values, const Task& task, const Item<T>& item, int chunk,
                                       const Half& me) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    const int rows = item.rowsOf(token);
    fetch<true>(keys, item.k, task.k, task, item, token, rows, me);
    fetch<false>(values, item.v, task.v, task, item, token, rows, me);
  }
  /// States are stored in the layout of shared memory.
  SEQPAR_DEVICE void fetchState(const T* states, int chunk, int thread) {
    constexpr int kElements = kMatrix / kHeads;
    const T* from = states + int64_t{chunk} * kElements + thread * 8;
    SEQPAR_UNROLL
    for (int i = 0; i < kElements; i += Half::kThreads * 8) ptx::cpAsync16(before + thread * 8 + i, from + i, true);
  }

 private:
  /// Loads a chunk of q or k (kKeys), or of v or dOut. `start`: of the item's first head. With two heads, the head is
  /// that of the warpgroup, a uniform value: ptxas of CUDA 13.0 computed the quotient of the thread's index again from
  /// a register that it had overwritten, and both warpgroups loaded dOut of the first head.
  template <bool kKeys>
  SEQPAR_DEVICE static void fetch(T* to, const T* start, const Input& tensor, const Task& task, const Item<T>& item,
                                  int64_t token, int rows, const Half& me) {
    const int columns = kKeys ? item.keys : item.values;
    if constexpr (kHeads == 1) {
      fetchRows<kChunk, Half::kThreads>(to, start + token * tensor.token, tensor.token, rows, columns, me.thread);
    } else {
      const int head = item.head + me.group;
      const T* from = item.at(tensor, kKeys ? head / task.group : head) + token * tensor.token;
      fetchPanel(to, from, tensor.token, rows, me.group < item.heads ? columns : 0, me);
    }
  }
};

/// Consumers, one thread of a warpgroup: starts copies of its rows of a state's image, in all panels, to device memory.
template <int kHeads, class T>
SEQPAR_DEVICE void keepImage(T* to, const T* image, const Half& me) {
  constexpr int kRows = kMatrixPanel / 2;
  SEQPAR_UNROLL
  for (int panel = 0; panel < 2 / kHeads; ++panel) {
    const int at = panel * kMatrixPanel + me.group * kRows;
    ptx::cpAsyncBulkStore(to + at, image + at, kRows * 2);
  }
}

/// Opaque address of the same shared memory: prevents the compiler from hoisting all derived addresses out of the
/// loops, where they would exceed the registers.
template <class Memory>
SEQPAR_DEVICE Memory& opaqueMemory() {
  return *reinterpret_cast<Memory*>(ptx::sharedMemory() + ptx::opaque(0));
}

/// Images of a chunk's queries and keys in fp16 (images_sm90.h): whether it has images, and the exponents of their
/// scales.
struct ImageScales {
  int fit, queries, keys;
};

/// Memory for channel gates. In the sweep, keys and values have three stages, the last one in place of E, and the last
/// four tiles are two stages of gates.
template <class T, int kHeads = 1>
struct ChannelMemory : ChunkTiles<T, kHeads> {
  using Tiles = ChunkTiles<T, kHeads>;
  static constexpr int kImages = 1;
  static constexpr int kWarps = Half::kThreads / 32;
  ChannelDecays<T> decays;
  float carry[2][kBlock];                   ///< row sums of S * E at the ends of two chunks
  float own[kHeads][kChunk];                ///< dA of a token with itself
  alignas(16) uint32_t largest[kWarps][2];  ///< q and k in bf16, per warp
  uint32_t largestOfDA[kWarps];
  static_assert(2 * kWarps <= 32);
  uint32_t wide[2 * kWarps];  ///< per warp: whether images have elements that are too small for them; read by one warp
  uint32_t leastTotal[kHeads];  ///< magnitude of the smallest log-decay of a chunk
  ImageScales images[2][kHeads];
  alignas(16) char item[kItemBytes];

  /// Terms of the gates' gradients, per half of the channels [64 tokens][64], in place of v and dOut. Unit u of 8
  /// elements of row r is at u ^ (r % 8).
  SEQPAR_DEVICE float* terms(int chunk, int half) {
    return reinterpret_cast<float*>(half == 0 ? this->v(chunk) : this->dOut(chunk));
  }
  /// The same in place of q and k, for strong decays.
  SEQPAR_DEVICE float* strongTerms(int chunk, int half) {
    return reinterpret_cast<float*>(half == 0 ? this->q(chunk) : this->k(chunk));
  }
  /// The head of a thread whose data is a head's.
  SEQPAR_DEVICE static int headOf(const Half& me) { return kHeads == 1 ? 0 : me.group; }
  /// Of each head, space of a matrix of 64 x 64 after the states.
  SEQPAR_DEVICE T* afterBefore(const Half& me) { return this->before + kMatrix / 2 + me.group * kTilePanel; }
  SEQPAR_DEVICE T* afterAfter(const Half& me) { return this->after + kMatrix / 2 + me.group * kTilePanel; }
  SEQPAR_DEVICE T* sweptKeys(int chunk) { return chunk % 3 < 2 ? this->tiles[chunk % 3 * 2] : this->after; }
  SEQPAR_DEVICE T* sweptValues(int chunk) { return sweptKeys(chunk) + kTile; }
  SEQPAR_DEVICE void fetchSwept(const Task& task, const Item<T>& of, int chunk, const Half& me) {
    Tiles::fetchSwept(sweptKeys(chunk), sweptValues(chunk), task, of, chunk, me);
  }
  /// Keys in the form that the state's gradient multiplies.
  SEQPAR_DEVICE T* stateKeys(int chunk) { return this->k(chunk); }
  SEQPAR_DEVICE T* image(int) { return this->before; }  ///< argument: number of later chunks
  SEQPAR_DEVICE char* sweptGates(int chunk) { return reinterpret_cast<char*>(this->tiles[4 + chunk % 2 * 2]); }

  /// Queries, keys and their decays.
  SEQPAR_DEVICE void fetchKeys(const Task& task, const Item<T>& of, int chunk, const Half& me) {
    Tiles::fetchKeys(task, of, chunk, me);
    decays.fetch(ChannelDecays<T>::kept(task, chunk), chunk, me.thread);
  }
};

}  // namespace seqpar::attn::backward::sm90
