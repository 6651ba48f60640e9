// Parts of the sm_90 kernels for heads with channel decays in chains (channel_chain_sm90.h): a chunk's record in device
// memory, the chain's shared memory, and items. The kernels also read the records of the backward
// (backward/channel_chunks_sm90.h), whose factors are relative to the middle of a chunk's decay.
#pragma once

#include "kernels/attn/linear/chunks/head_chain_items_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// A chunk of a head. Its factors are at most 1, so they are exact for any decays.
template <class T, int kBlocks>
struct alignas(128) ChannelRecord {
  static constexpr int kChannels = kBlocks * backward::kBlock;
  T queries[kBlocks * kTile];  ///< times the scale and the decay from the chunk's start; panels of 64 channels
  T keys[kBlocks * kTile];     ///< times the decay to the chunk's end
  float decays[kChannels];     ///< of the chunk
  float forgets, unused[3];    ///< 1: a factor may be 0
  uint32_t scores[kChunk / 16][warpgroup::kThreads][4];  ///< with decays and scale, as A of wgmma

  /// A score as 16 bits.
  SEQPAR_DEVICE uint16_t* scoreAt(int query, int key) {
    const int thread = query / 16 * 32 + query % 8 * 4 + key % 8 / 2, word = query % 16 / 8 + key % 16 / 8 * 2;
    return reinterpret_cast<uint16_t*>(&scores[key / 16][thread][word]) + key % 2;
  }
};

/// Whether a chunk's queries and keys are to be multiplied by half of its decay, `decays` of its record.
template <class Record>
inline constexpr bool kHalfDecays = !requires(const Record& record) {
  record.forgets;
};

/// The decays of a record in shared memory.
template <class Record, bool kHalves = kHalfDecays<Record>>
struct StagedDecays {
  float of[Record::kChannels], forgets, unused[3];
};
template <class Record>
struct StagedDecays<Record, true> {
  float of[Record::kChannels];
  static constexpr float forgets = 0;
};

/// The scores of a step of 16 keys, as A of wgmma.
template <class Record>
SEQPAR_DEVICE void loadScores(uint32_t (&words)[4], const Record& record, int step, const Half& me) {
  if constexpr (kHalfDecays<Record>) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      words[i] = *backward::sm90::pairOf(record.scores[0], me.row + i % 2 * 8, 2 * step + i / 2, me);
    }
  } else {
    ptx::load(words, record.scores[step][me.inGroup]);
  }
}

/// A head has `parts` parts of `partChunks` chunks, and CTAs compute their outputs at the same time. A part has
/// `pieces` pieces of `pieceChunks` chunks; the last one is shorter. channel_chain_pieces_sm90.h computes the maps of
/// pieces before, so that the chain of a part can start with the state before it.
struct ChannelChainTask : HeadChainTask {
  int parts = 1, partChunks = 0;
  int pieces = 1, pieceChunks = 0;
  bool lastPart = false;             ///< maps of the last part's pieces are computed
  char* records = nullptr;           ///< ChannelRecord, or the backward's: [batch][heads][chunks]
  const uint32_t* strong = nullptr;  ///< not 0: decays are too strong for the backward's records. NULL: there are none
  float* pieceDecays = nullptr;      ///< [batch][heads][allPieces()][channels]
  float* pieceStates = nullptr;      ///< [allPieces()][chains], ChannelState of each thread, from zero states
  StateMaps maps;                    ///< out: of the pieces; NULL: not written

  SEQPAR_BOTH_INLINE int allPieces() const { return parts * pieces; }
  /// Pieces with maps.
  SEQPAR_BOTH_INLINE int mapCount() const { return lastPart ? allPieces() : allPieces() - pieces; }
  SEQPAR_DEVICE int64_t headOf(const ChainItem& item) const { return int64_t{item.sequence} * heads + item.head; }
  /// Whether kernels for these records have work.
  template <class Record>
  SEQPAR_DEVICE bool isNeeded() const {
    return strong == nullptr || (ptx::loadRelaxedGpu(strong) == 0) == kHalfDecays<Record>;
  }
  template <class Record>
  SEQPAR_DEVICE Record& recordOf(const ChainItem& item, int chunk) const {
    return reinterpret_cast<Record*>(records)[headOf(item) * chunks() + chunk];
  }
  SEQPAR_DEVICE float* decaysOf(const ChainItem& item, int piece, int channels) const {
    return pieceDecays + (headOf(item) * allPieces() + piece) * channels;
  }
  SEQPAR_DEVICE float* stateOf(const ChainItem& item, int piece, int channels) const {
    const int64_t chain = headOf(item) * chainsOfHead<1>(*this) + item.column / kPanel;
    return pieceStates + (piece * chainsOf<1>(*this) + chain) * channels * kPanel;
  }
};

/// A part of a head's chunks for 64 columns.
struct ChannelItem : ChainItem {
  int part = 0;

  SEQPAR_DEVICE static ChannelItem at(const ChannelChainTask& task, int64_t chain, int part) {
    ChannelItem item{ChainItem::at<1>(task, chain), part};
    const int left = task.chunks() - part * task.partChunks;
    item.chunk = part * task.partChunks;
    item.chunks = left < task.partChunks ? left : task.partChunks;
    return item;
  }
};
/// A piece of a head's chunks for 64 columns; possibly without chunks.
struct ChannelPiece : ChainItem {
  int piece = 0;

  SEQPAR_DEVICE static ChannelPiece at(const ChannelChainTask& task, int64_t chain, int piece) {
    ChannelPiece item{ChainItem::at<1>(task, chain), piece};
    const int start = piece / task.pieces * task.partChunks, all = task.chunks();
    const int end = start + task.partChunks < all ? start + task.partChunks : all;
    item.chunk = start + piece % task.pieces * task.pieceChunks;
    const int left = end - item.chunk;
    item.chunks = left < 0 ? 0 : left < task.pieceChunks ? left : task.pieceChunks;
    return item;
  }
};
/// Calls act(item, running number of its first chunk) for the CTA's items.
template <class Act>
SEQPAR_DEVICE void eachChannelItem(const ChannelChainTask& task, const Act& act) {
  const int64_t chains = chainsOf<1>(task);
  int first = 0;
  for (int64_t index = ptx::block(); index < chains * task.parts; index += ptx::blocks()) {
    const ChannelItem item = ChannelItem::at(task, index % chains, static_cast<int>(index / chains));
    act(item, first);
    first += item.chunks;
  }
}

template <class T, int kOfBlocks, class OfRecord = ChannelRecord<T, kOfBlocks>>
struct ChannelChainMemory {
  static constexpr int kBlocks = kOfBlocks, kKeyPanels = 2 * kBlocks, kChannels = kBlocks * backward::kBlock;
  using Record = OfRecord;
  static constexpr bool kChannelRows = kHalfDecays<Record>;  ///< of images, as the backward reads them
  using Decays = StagedDecays<Record>;
  T queryTiles[2][kBlocks * kTile], keyTiles[2][kBlocks * kTile], images[2][kBlocks * kTile];  ///< images: as below
  T valueTiles[3][kTilePanel], out[kTilePanel];
  alignas(16) Decays decayStages[2];
  float lost[2][4];  ///< per warp of the state: 1: not all elements of an image are finite, and the chunk forgets
  alignas(8) uint64_t queryBarriers[2][2], keyBarriers[2][2], valueBarriers[3][2], imageBarriers[2][2], outBarriers[3];

  // Argument: running number of a chunk over all items of the CTA.
  SEQPAR_DEVICE T* queries(int number) { return queryTiles[number % 2]; }
  SEQPAR_DEVICE T* keys(int number) { return keyTiles[number % 2]; }
  SEQPAR_DEVICE T* values(int number) { return valueTiles[number % 3]; }
  SEQPAR_DEVICE Decays& decays(int number) { return decayStages[number % 2]; }
  /// A state, transposed: 64 columns; with kChannelRows not.
  SEQPAR_DEVICE T* image(int number) { return images[number % 2]; }
  SEQPAR_DEVICE uint32_t queriesFull(int number) const { return ptx::sharedAddress(&queryBarriers[number % 2][0]); }
  SEQPAR_DEVICE uint32_t queriesEmpty(int number) const { return ptx::sharedAddress(&queryBarriers[number % 2][1]); }
  SEQPAR_DEVICE uint32_t keysFull(int number) const { return ptx::sharedAddress(&keyBarriers[number % 2][0]); }
  SEQPAR_DEVICE uint32_t keysEmpty(int number) const { return ptx::sharedAddress(&keyBarriers[number % 2][1]); }
  SEQPAR_DEVICE uint32_t valuesFull(int number) const { return ptx::sharedAddress(&valueBarriers[number % 3][0]); }
  SEQPAR_DEVICE uint32_t valuesEmpty(int number) const { return ptx::sharedAddress(&valueBarriers[number % 3][1]); }
  SEQPAR_DEVICE uint32_t stored(int number) const { return ptx::sharedAddress(&imageBarriers[number % 2][0]); }
  SEQPAR_DEVICE uint32_t read(int number) const { return ptx::sharedAddress(&imageBarriers[number % 2][1]); }
  // A warpgroup of outputs has every second chunk, and waits for a barrier of the others.
  SEQPAR_DEVICE uint32_t outputsRead(int number) const { return ptx::sharedAddress(&outBarriers[number % 2]); }
  SEQPAR_DEVICE uint32_t outputsFull() const { return ptx::sharedAddress(&outBarriers[2]); }

  SEQPAR_DEVICE static void await2(uint32_t barrier, int number) { ptx::mbarrierWaitParity(barrier, number / 2 & 1); }
  SEQPAR_DEVICE void awaitQueries(int number) const { await2(queriesFull(number), number); }
  SEQPAR_DEVICE void awaitKeys(int number) const { await2(keysFull(number), number); }
  SEQPAR_DEVICE void awaitValues(int number) const { ptx::mbarrierWaitParity(valuesFull(number), number / 3 & 1); }
  SEQPAR_DEVICE void awaitStored(int number) const { await2(stored(number), number); }
  // Before those of chunk `number` are loaded or written.
  SEQPAR_DEVICE void awaitQueriesEmpty(int number) const {
    if (number >= 2) await2(queriesEmpty(number), number - 2);
  }
  SEQPAR_DEVICE void awaitKeysEmpty(int number) const {
    if (number >= 2) await2(keysEmpty(number), number - 2);
  }
  SEQPAR_DEVICE void awaitValuesEmpty(int number) const {
    if (number >= 3) ptx::mbarrierWaitParity(valuesEmpty(number), (number / 3 - 1) & 1);
  }
  SEQPAR_DEVICE void awaitRead(int number) const {
    if (number >= 2) await2(read(number), number - 2);
  }
  SEQPAR_DEVICE void awaitOutputsRead(int number) const {
    if (number > 0) await2(outputsRead(number - 1), number - 1);
  }
};

/// A state of 64 columns x 128 kBlocks channels, transposed, in the accumulators of a warpgroup.
template <int kBlocks>
using ChannelState = float[kBlocks][backward::kBlock / 8][4];

/// Calls act(element, its offset in the item's [dk][dv]) for the valid elements. `first`: the state's first channel.
template <int kBlocks, class Act>
SEQPAR_DEVICE void eachOfState(ChannelState<kBlocks>& x, const ChannelChainTask& task, const ChainItem& item,
                               const Half& me, int first, const Act& act) {
  constexpr int kTiles8 = backward::kBlock / 8;
  const int columns = task.dv - item.column;
  SEQPAR_UNROLL
  for (int n = 0; n < kBlocks * kTiles8; ++n) {
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int channel = first + n * 8 + me.c * 2 + e % 2, column = me.row + e / 2 * 8;
      if (channel < task.dk && column < columns) {
        act(x[n / kTiles8][n % kTiles8][e], int64_t{channel} * task.dv + column);
      }
    }
  }
}
/// Calls act(accumulator tile, number of the tile, its four elements in the state of a part).
template <int kBlocks, class Act>
SEQPAR_DEVICE void eachTile(ChannelState<kBlocks>& x, float* state, const Half& me, const Act& act) {
  constexpr int kTiles8 = backward::kBlock / 8;
  SEQPAR_UNROLL
  for (int n = 0; n < kBlocks * kTiles8; ++n) {
    act(x[n / kTiles8][n % kTiles8], n, state + (n * warpgroup::kThreads + me.inGroup) * 4);
  }
}
template <int kBlocks>
SEQPAR_DEVICE void fenceState(ChannelState<kBlocks>& x) {
  SEQPAR_UNROLL
  for (auto& block : x) warpgroup::fenceOperand(block);
}
/// x *= decays. kForgets: factors may be 0, which discard NaN and infinity.
template <bool kForgets, int kBlocks>
SEQPAR_DEVICE void decayState(ChannelState<kBlocks>& x, const float* decays, const Half& me) {
  constexpr int kTiles8 = backward::kBlock / 8;
  SEQPAR_UNROLL
  for (int n = 0; n < kBlocks * kTiles8; ++n) {
    float by[2];
    ptx::loadPair(decays + n * 8 + me.c * 2, by[0], by[1]);
    SEQPAR_UNROLL
    for (int e = 0; e < 4; ++e) {
      float& number = x[n / kTiles8][n % kTiles8][e];
      number = kForgets ? backward::times(by[e % 2], number) : by[e % 2] * number;
    }
  }
}
/// x += V^T K. Complete afterwards.
template <class T, int kBlocks>
SEQPAR_DEVICE void multiplyState(ChannelState<kBlocks>& x, const T* keys, const T* values) {
  fenceState<kBlocks>(x);
  warpgroup::arrive();
  const warpgroup::Matrix a = warpgroup::matrixOf(Operand{values, kTilePanelBytes});
  SEQPAR_UNROLL
  for (int step = 0; step < kChunk / 16; ++step) {
    SEQPAR_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      const Operand b{keys + block * kTile, kTilePanelBytes};
      warpgroup::multiply<T, Terms::Rows, Terms::Rows>(
          x[block], a + warpgroup::stepOf<Terms::Rows>(kChunk, step),
          warpgroup::matrixOf(b) + warpgroup::stepOf<Terms::Rows>(kChunk, step), true);
    }
  }
  warpgroup::commit();
  warpgroup::wait<0>();
  fenceState<kBlocks>(x);
}
/// Whether all elements of this thread are finite.
template <int kBlocks>
SEQPAR_DEVICE bool isFinite(const ChannelState<kBlocks>& x) {
  float sum = 0;
  SEQPAR_UNROLL
  for (const auto& block : x) {
    SEQPAR_UNROLL
    for (const auto& tile : block) {
      SEQPAR_UNROLL
      for (const float number : tile) sum += 0 * number;
    }
  }
  return sum == 0;
}
/// Stores a state, of tiles(words, pair of tiles), as an image: 64 columns x channels; with kChannelRows channels x 64
/// columns.
template <int kBlocks, bool kChannelRows, class T, class Tiles>
SEQPAR_DEVICE void storeStateImage(T* image, const Half& me, const Tiles& tiles) {
  const ptx::MatrixRows own = me.matrixRows();
  const ptx::MatrixRowsAcross across{me.lane};
  SEQPAR_UNROLL
  for (int i = 0; i < kBlocks * backward::kBlock / 16; ++i) {
    uint32_t words[4];
    tiles(words, i);
    if constexpr (kChannelRows) {
      T* row = backward::sm90::unitOf<kBlocks * backward::kBlock>(image, across.row(i * 16),
                                                                  me.warpIndex * 2 + across.half());
      ptx::stmatrixX4Trans(ptx::sharedAddress(row), words);
    } else {
      ptx::stmatrixX4(backward::sm90::unitOf<kChunk>(image, own.row(me.warpIndex * 16), 2 * i + own.half()), words);
    }
  }
}
/// out += queries * state, except products of queries of 0, for states with elements that are not finite.
template <class T, int kChannels>
SEQPAR_DEVICE void addKnown(float (&out)[kPanel / 8][4], const T* queries, const T* image, const Half& me) {
  const auto pairOf = [](const T* tile, int row, int channel) {
    return *reinterpret_cast<const uint32_t*>(backward::sm90::unitOf<kChunk>(tile, row, channel / 8) + channel % 8);
  };
  SEQPAR_ROLLED
  for (int channel = 0; channel < kChannels; channel += 2) {
    const uint32_t rows[2] = {pairOf(queries, me.row, channel), pairOf(queries, me.row + 8, channel)};
    SEQPAR_UNROLL
    for (int n = 0; n < kPanel / 8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const uint32_t of = pairOf(image, n * 8 + me.c * 2 + e % 2, channel);
        out[n][e] += backward::times(ptx::lowOf<T>(rows[e / 2]), ptx::lowOf<T>(of)) +
                     backward::times(ptx::highOf<T>(rows[e / 2]), ptx::highOf<T>(of));
      }
    }
  }
}

}  // namespace seqpar::attn::forward_sm90
