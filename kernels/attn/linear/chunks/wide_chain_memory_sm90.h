// Parts of the sm_90 kernel for outputs of a head with keys of 256 in one chain (wide_chain_sm90.h): shared memory.
#pragma once

#include "kernels/attn/linear/chunks/head_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// kKeepsImages: as in HeadChainMemory.
template <class T, bool kKeepsImages = false>
struct WideChainMemory {
  static constexpr bool kKeeps = kKeepsImages, kChannelRows = kKeeps;
  static constexpr int kPanels = 1, kKeyPanels = 4, kStages = 3, kImages = 2;
  using Factors = ChainFactors<false>;
  struct Tiles {
    T keys[kKeyPanels * kTilePanel], values[kTilePanel];
  };
  T chunkQueries[kKeyPanels * kTilePanel];
  Tiles tiles[kStages];
  T images[kImages][kKeyPanels * kTilePanel];  ///< states, as in HeadChainMemory
  T out[kTilePanel];
  Factors factors[kStages];
  alignas(8) uint64_t barriers[kStages][2], imageBarriers[kImages][2];
  // A warpgroup of outputs has every second chunk, and a barrier for these: it could take an earlier phase of a barrier
  // of all chunks for the phase that it waits for.
  uint64_t queryBarriers[2][2], outBarriers[3];

  // Argument: running number of a chunk over all items of the CTA.
  SEQPAR_DEVICE Tiles& of(int number) { return tiles[number % kStages]; }
  SEQPAR_DEVICE Factors& factorsOf(int number) { return factors[number % kStages]; }
  SEQPAR_DEVICE T* image(int number) { return images[number % kImages]; }
  SEQPAR_DEVICE T* outputs(int) { return out; }
  SEQPAR_DEVICE uint32_t full(int number) const { return ptx::sharedAddress(&barriers[number % kStages][0]); }
  SEQPAR_DEVICE uint32_t empty(int number) const { return ptx::sharedAddress(&barriers[number % kStages][1]); }
  SEQPAR_DEVICE uint32_t stored(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][0]); }
  SEQPAR_DEVICE uint32_t read(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][1]); }
  SEQPAR_DEVICE uint32_t queriesFull(int number) const { return ptx::sharedAddress(&queryBarriers[number % 2][0]); }
  SEQPAR_DEVICE uint32_t queriesEmpty(int number) const { return ptx::sharedAddress(&queryBarriers[number % 2][1]); }
  SEQPAR_DEVICE uint32_t outputsRead(int number) const { return ptx::sharedAddress(&outBarriers[number % 2]); }
  SEQPAR_DEVICE uint32_t outputsFull() const { return ptx::sharedAddress(&outBarriers[2]); }
  SEQPAR_DEVICE void awaitFull(int number) const { ptx::mbarrierWaitParity(full(number), number / kStages & 1); }
  SEQPAR_DEVICE void awaitEmpty(int number) const {
    if (number >= kStages) ptx::mbarrierWaitParity(empty(number), (number / kStages & 1) ^ 1);
  }
  SEQPAR_DEVICE void awaitStored(int number) const { ptx::mbarrierWaitParity(stored(number), number / kImages & 1); }
  SEQPAR_DEVICE void awaitRead(int number) const {
    if (number >= kImages) ptx::mbarrierWaitParity(read(number), (number / kImages & 1) ^ 1);
  }
  /// Before those of chunk `number` are loaded.
  SEQPAR_DEVICE void awaitQueriesEmpty(int number) const {
    if (number > 0) ptx::mbarrierWaitParity(queriesEmpty(number - 1), (number - 1) / 2 & 1);
  }
  SEQPAR_DEVICE const T* queries(int number) {
    ptx::mbarrierWaitParity(queriesFull(number), number / 2 & 1);
    return chunkQueries;
  }
  /// Before those of chunk `number` are written.
  SEQPAR_DEVICE void awaitOutputsRead(int number) const {
    if (number > 0) ptx::mbarrierWaitParity(outputsRead(number - 1), (number - 1) / 2 & 1);
  }
};

}  // namespace seqpar::attn::forward_sm90
