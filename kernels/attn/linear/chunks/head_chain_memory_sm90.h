// Parts of the sm_90 kernel for outputs of a head in one chain (head_chain_sm90.h): shared memory and items.
#pragma once

#include "kernels/attn/linear/backward/chunk_states_sm90.h"
#include "kernels/attn/linear/chunks/score_decays_sm90.h"

namespace seqpar::attn::forward_sm90 {

using backward::kChunk;
using backward::Task;
using backward::sm90::ChunkStatesTask;
using backward::sm90::Half;
using backward::sm90::kTile;
using backward::sm90::kTilePanel;
using backward::sm90::kTilePanelBytes;
using warpgroup::kPanel;
using warpgroup::Operand;
using warpgroup::Terms;

/// Factors of a chunk's tokens. kRows: with those of rows in memory.
template <bool kRows>
struct alignas(16) ChainFactors {
  static constexpr bool kHasRows = kRows;
  float queries[kChunk];  ///< the scale times the decay to a query over the decay to a reference; not separable: the
                          ///< log2-decays from the chunk's start
  float keys[kChunk];  ///< the input gate of a key times the decay to the reference over its decay; or the input gate
  float ends[kChunk];  ///< the input gate of a key times the decay to the chunk's end
  float rows[kRows ? kChunk : 1];  ///< the scale times the decay to a query; or only the decay to the reference
  float decay;                     ///< of the chunk
  float little;                    ///< 1: no row is 0
  float separable;                 ///< 1: decays of scores are products of a query's factor and a key's

  SEQPAR_DEVICE float rowOf(int query, float scale) const {
    if constexpr (kRows) return rows[query];
    return separable != 0 ? queries[query] * rows[0] : scale * backward::decayOf(queries[query]);
  }
};

/// Columns of v of an item: a panel, or one and 16 columns of another one.
template <int kPanels>
constexpr int kChainColumns = kPanels == 1 ? kPanel : kPanel + 16;

/// kOfPanels: of an item's columns. kOfKeyPanels: panels of 64 channels of keys, 1 or 2. kKeepsImages: another thread
/// copies images to device memory.
template <class T, int kOfPanels, int kOfKeyPanels, bool kKeepsImages = false>
struct HeadChainMemory {
  static constexpr int kPanels = kOfPanels, kKeyPanels = kOfKeyPanels;
  static constexpr bool kKeeps = kKeepsImages;
  /// Images of 64 columns are S^T, or if they are kept S, as ../backward/group_sm90.h reads them; of 80 columns S^T.
  static constexpr bool kChannelRows = kKeeps && kPanels == 1;
  using Factors = ChainFactors<true>;
  static constexpr int kStages = kPanels == 1 ? 4 : 3, kImages = 2;
  struct Tiles {
    T queries[kKeyPanels * kTilePanel], keys[kKeyPanels * kTilePanel], values[kPanels * kTilePanel];
  };
  Tiles tiles[kStages];
  T images[kImages][kChainColumns<kPanels> * kKeyPanels * kPanel];  ///< states
  T out[2][kPanels * kTilePanel];
  Factors factors[kStages];
  alignas(8) uint64_t barriers[kStages][2], imageBarriers[kImages][2];

  // Argument: running number of a chunk over all items of the CTA.
  SEQPAR_DEVICE Tiles& of(int number) { return tiles[number % kStages]; }
  SEQPAR_DEVICE Factors& factorsOf(int number) { return factors[number % kStages]; }
  SEQPAR_DEVICE T* image(int number) { return images[number % kImages]; }
  SEQPAR_DEVICE T* outputs(int number) { return out[number % 2]; }
  SEQPAR_DEVICE uint32_t full(int number) const { return ptx::sharedAddress(&barriers[number % kStages][0]); }
  SEQPAR_DEVICE uint32_t empty(int number) const { return ptx::sharedAddress(&barriers[number % kStages][1]); }
  SEQPAR_DEVICE uint32_t stored(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][0]); }
  SEQPAR_DEVICE uint32_t read(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][1]); }
  SEQPAR_DEVICE void awaitFull(int number) const { ptx::mbarrierWaitParity(full(number), number / kStages & 1); }
  SEQPAR_DEVICE void awaitEmpty(int number) const {
    if (number >= kStages) ptx::mbarrierWaitParity(empty(number), (number / kStages & 1) ^ 1);
  }
  SEQPAR_DEVICE void awaitStored(int number) const { ptx::mbarrierWaitParity(stored(number), number / kImages & 1); }
  SEQPAR_DEVICE void awaitRead(int number) const {
    if (number >= kImages) ptx::mbarrierWaitParity(read(number), (number / kImages & 1) ^ 1);
  }
};

/// The items of a head.
template <int kPanels>
SEQPAR_BOTH_INLINE int chainsOfHead(const Task& task) {
  return (task.dv + kChainColumns<kPanels> - 1) / kChainColumns<kPanels>;
}
/// The items of a problem: columns of a head.
template <int kPanels>
SEQPAR_BOTH_INLINE int64_t chainsOf(const Task& task) {
  return int64_t{task.batch} * task.heads * chainsOfHead<kPanels>(task);
}

struct ChainItem {
  int sequence, head, column;  ///< column: the first one
  int chunk = 0, chunks = 0;   ///< the first chunk, and their count

  template <int kPanels>
  SEQPAR_DEVICE static ChainItem at(const Task& task, int64_t index) {
    const int items = chainsOfHead<kPanels>(task);
    ChainItem item;
    item.column = static_cast<int>(index % items) * kChainColumns<kPanels>;
    item.head = static_cast<int>(index / items % task.heads);
    item.sequence = static_cast<int>(index / items / task.heads);
    return item;
  }
  /// Of the item's first element in states [batch][heads][dk][dv].
  SEQPAR_DEVICE int64_t stateOffset(const Task& task) const {
    return (int64_t{sequence} * task.heads + head) * task.dk * task.dv + column;
  }
};

/// dOut is the output; of `to`, the final state is used, and with kKeeps the states of chunks. Heads may be in two
/// parts, which other CTAs compute at the same time: the second one starts from a zero state, and
/// head_chain_tail_sm90.h adds what it lacks. It also adds the contribution of a state before all tokens that was not
/// known to the chains.
struct HeadChainTask : ChunkStatesTask {
  float* saved = nullptr;           ///< out: a copy of `initial`, or zeros; NULL: not written
  int firstChunks = 0;              ///< of the first part; 0: heads are not divided
  float* middle = nullptr;          ///< out, if divided: [batch][heads][dk][dv], the states after the first parts
  void* images = nullptr;           ///< out, if divided: the same, rounded, as images of items of 64 columns
  float* totals = nullptr;          ///< out: [batch][heads][chunks], the log2-decays of chunks; NULL: not written
  const float* incoming = nullptr;  ///< of the tail: [batch][heads][dk][dv], the state before all tokens; NULL: 0, or
                                    ///< known to the chains

  SEQPAR_BOTH_INLINE int chunks() const { return static_cast<int>((tokens + kChunk - 1) / kChunk); }
  /// The image of an item of 64 columns, of kElements elements.
  template <int kElements, class T>
  SEQPAR_DEVICE T* imageOf(const ChainItem& item) const {
    const int64_t head = int64_t{item.sequence} * heads + item.head;
    return static_cast<T*>(images) + (head * chainsOfHead<1>(*this) + item.column / kPanel) * kElements;
  }
  SEQPAR_DEVICE float* totalsOf(const ChainItem& item) const {
    return totals + (int64_t{item.sequence} * heads + item.head) * chunks();
  }
};

/// The accumulators of an item's columns in panel 0 or 1.
template <int kWhich, int N>
SEQPAR_DEVICE auto& ofPanel(float (&c)[N][4]) {
  constexpr int kFirst = kWhich * kPanel / 8, kCount = kWhich == 0 ? kPanel / 8 : N - kPanel / 8;
  return reinterpret_cast<float(&)[kCount][4]>(c[kFirst]);
}
/// One step of c (+)= a b, for the columns of a panel or more. `second`: bytes from b's first panel of columns to the
/// second one.
template <class T, Terms kB, int N>
SEQPAR_DEVICE void multiplyColumns(float (&c)[N][4], const uint32_t (&a)[4], const T* b, int second, int panels,
                                   int rowsB, int step, bool add) {
  warpgroup::multiplyStep<T, kB>(ofPanel<0>(c), a, Operand{b, panels}, rowsB, step, add);
  if constexpr (N > kPanel / 8) {
    const T* next = b + second / int{sizeof(T)};
    warpgroup::multiplyStep<T, kB>(ofPanel<1>(c), a, Operand{next, panels}, rowsB, step, add);
  }
}

}  // namespace seqpar::attn::forward_sm90
