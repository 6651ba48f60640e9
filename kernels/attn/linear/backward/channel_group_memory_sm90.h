// Shared memory and items of the gradients' kernel for chunks with channel decays (channel_group_sm90.h), and its
// loads.
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/arch/tma.h"
#include "kernels/attn/linear/backward/channel_chunks_sm90.h"

namespace seqpar::attn::backward::sm90 {

constexpr int kOfKeys = 11, kOfQueries = 12, kOfGates = 13;  ///< named barriers, after kOfScores and kOfTotal

/// Shared memory.
template <class T>
struct ChannelGroupMemory {
  static constexpr int kStages = 2, kConsumerWarps = 16;
  static constexpr int kImage = ChunkStates::kElements;
  using Record = ChunkRecord<T>;
  /// The tiles of a part, 64 columns of v.
  struct Stage {
    alignas(1024) T v[kTilePanel], dOut[kTilePanel], before[kImage];
    T after[2 * kImage];  ///< the item's block of keys first

    /// After the last part: remainders of q' and k', of the item's block; then dq and dk.
    SEQPAR_DEVICE T* queryRests() { return v; }
    SEQPAR_DEVICE T* keyRests() { return before; }
    /// Terms of the gates' gradients, q' dq' - k' dk': 64 x 128 in fp32, in units of 8 that are swizzled.
    SEQPAR_DEVICE float* terms() { return reinterpret_cast<float*>(after); }
    SEQPAR_DEVICE const float* terms() const { return reinterpret_cast<const float*>(after); }
    SEQPAR_DEVICE static int termAt(int row, int channel) {
      return row * kBlock + ((channel / 8) ^ (row % 8)) * 8 + channel % 8;
    }
  };
  static_assert(2 * kTilePanel == kTile && kImage == kTile && 2 * sizeof(T) == sizeof(float));
  alignas(1024) T q[kTile], k[2 * kTile];  ///< q: the item's block
  T matrices[2][kTilePanel];               ///< A and its remainder; then the remainder of dA in the first one
  Stage stages[kStages];
  T out[kTilePanel];                                   ///< dv; then dA
  uint32_t logs[kBlock / 16][warpgroup::kThreads][4];  ///< L of the item's block, loaded with the remainders
  float carry[5][kBlock];                              ///< k' dk' of the state, of each warp's tokens, and S' E'
  alignas(16) float decays[kBlock];                    ///< of the item's block
  /// mbarriers (channel_group_sm90.h).
  alignas(8) uint64_t full[kStages], empty[kStages], shared, sharedEmpty;

  SEQPAR_DEVICE void init() {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrierInit(ptx::sharedAddress(full + i), 1);
      ptx::mbarrierInit(ptx::sharedAddress(empty + i), kConsumerWarps);
    }
    ptx::mbarrierInit(ptx::sharedAddress(&shared), 1);
    ptx::mbarrierInit(ptx::sharedAddress(&sharedEmpty), kConsumerWarps);
    ptx::fenceMbarrierInit();
  }
  SEQPAR_DEVICE bool isStrong() const { return Record::isStrong(decays[0]); }
  /// Whether the item computes dv of a part: the items of a chunk take turns.
  SEQPAR_DEVICE static bool hasValues(const GroupItem& item, int part) { return part % 2 == item.block; }
  /// The item's block of k, or the other one.
  SEQPAR_DEVICE static int keysAt(const GroupItem& item, bool other = false) {
    return (other ? 1 - item.block : item.block) * kTile;
  }
};

/// Calls act(item) for the CTA's items.
template <class Act>
SEQPAR_DEVICE void eachChannelChunk(const ChannelTask& task, const Act& act) {
  const int64_t items = groupItemsOf(task);
  for (int64_t index = ptx::block(); index < items; index += ptx::blocks()) act(GroupItem(task, index, 2));
}

/// One thread: loads the parts up to two ahead, and queries, keys and scores when no warp uses the last ones.
template <class T>
struct ChannelGroupLoads {
  using Memory = ChannelGroupMemory<T>;
  static constexpr int kStages = Memory::kStages;

  SEQPAR_DEVICE static void run(const ChannelTask& task, Memory& memory) {
    StagesOf<kStages> pipe;
    int shared = 1, loaded = 0;
    const int parts = task.panels();
    eachChannelChunk(task, [&](const GroupItem& item) {
      for (int part = 0; part < parts; ++part) {
        awaitPhase(memory.empty[pipe.stage], pipe.parity ^ 1);
        loadPart(task, item, part, memory.stages[pipe.stage], ptx::sharedAddress(memory.full + pipe.stage));
        pipe.next();
        if (part != 0) continue;
        awaitPhase(memory.sharedEmpty, shared);
        shared ^= 1;
        loadShared(task, item, memory);
      }
      awaitPhase(memory.empty[pipe.stage], pipe.parity ^ 1);
      auto& stage = memory.stages[pipe.stage];
      const uint32_t full = ptx::sharedAddress(memory.full + pipe.stage);
      constexpr int kBytes = 2 * kTile * int{sizeof(T)};
      awaitPhase(memory.shared, loaded);
      loaded ^= 1;
      if (memory.isStrong()) {
        ptx::mbarrierArrive(full);
      } else {
        const auto& record = recordOf(task, item);
        ptx::mbarrierArriveExpectTx(full, kBytes + int{sizeof(memory.logs)});
        ptx::cpAsyncBulkLoad(stage.v, record.rests[item.block], kBytes, full);
        ptx::cpAsyncBulkLoad(memory.logs, record.logs[item.block], int{sizeof(memory.logs)}, full);
      }
      pipe.next();
    });
  }
  SEQPAR_DEVICE static void loadPart(const ChannelTask& task, const GroupItem& item, int part,
                                     typename Memory::Stage& stage, uint32_t full) {
    constexpr int kImageBytes = Memory::kImage * int{sizeof(T)};
    const bool other = Memory::hasValues(item, part);
    const int column = part * kPanel, token = static_cast<int>(item.token);
    ptx::mbarrierArriveExpectTx(full, int{sizeof(stage)} - (other ? 0 : kImageBytes));
    ptx::tmaLoad(ptx::sharedAddress(stage.v), task.values, full, column, item.head, token, item.sequence);
    ptx::tmaLoad(ptx::sharedAddress(stage.dOut), task.outputs, full, column, item.head, token, item.sequence);
    const auto loadImage = [&](T* to, const void* from, int block) {
      const T* image =
          static_cast<const T*>(from) + task.chunks.panelAt(task, item.sequence, item.head, block, part, item.number);
      ptx::cpAsyncBulkLoad(to, image, kImageBytes, full);
    };
    loadImage(stage.before, task.chunks.states, item.block);
    loadImage(stage.after, task.chunks.gradients, item.block);
    if (other) loadImage(stage.after + Memory::kImage, task.chunks.gradients, 1 - item.block);
  }
  SEQPAR_DEVICE static typename Memory::Record& recordOf(const ChannelTask& task, const GroupItem& item) {
    return task.recordOf<typename Memory::Record>(item.sequence, item.head, item.number);
  }
  SEQPAR_DEVICE static void loadShared(const ChannelTask& task, const GroupItem& item, Memory& memory) {
    const uint32_t full = ptx::sharedAddress(&memory.shared);
    const auto& record = recordOf(task, item);
    ptx::mbarrierArriveExpectTx(
        full, int{sizeof(memory.q) + sizeof(memory.k) + sizeof(memory.matrices) + sizeof(memory.decays)});
    ptx::cpAsyncBulkLoad(memory.decays, record.decays + item.block * kBlock, int{sizeof(memory.decays)}, full);
    ptx::cpAsyncBulkLoad(memory.q, record.queries + item.block * kTile, int{sizeof(memory.q)}, full);
    ptx::cpAsyncBulkLoad(memory.k, record.keys, int{sizeof(memory.k)}, full);
    ptx::cpAsyncBulkLoad(memory.matrices, record.scores, int{sizeof(memory.matrices)}, full);
  }
};

}  // namespace seqpar::attn::backward::sm90
