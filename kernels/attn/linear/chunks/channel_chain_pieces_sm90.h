// Maps of pieces of heads with channel decays on sm_90a (channel_chain_sm90.h), from zero states, so that chains can
// start in the middle of a head: the state after the piece, and its decays. The same maps are those of a scan between
// ranks.
//
// Work      a CTA of 384 threads, one per SM, takes items (piece of a head, 64 columns of v) in steps of the grid: the
//           last pieces of parts first. It leaves out chunks that later ones of their part have forgotten
// Roles     all threads: decays; then warpgroup 0: one thread issues loads; each other one: the state of 128 channels
// Tiles     64 tokens; S^T 64 x 128 fp32 in the registers of a warpgroup
// Smem      five stages of keys and values (16 kBlocks + 8 KiB each), and decays
// Barriers  mbarriers of a stage: full, empty. __syncthreads() between items
// Overlap   starts early, and waits before all accesses
#pragma once

#include "kernels/attn/linear/chunks/channel_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

template <class T, int kBlocks, class Record>
struct ChannelPiecesMemory {
  static constexpr int kStages = 5, kChannels = kBlocks * backward::kBlock;
  struct Stage {
    T keys[kBlocks * kTile], values[kTilePanel];
  };
  Stage tiles[kStages];
  using Decays = StagedDecays<Record>;
  alignas(16) Decays decayStages[kStages];
  alignas(8) uint64_t barriers[kStages][2];
  float needed[4 * (kBlocks + 1)];  ///< per warp

  // Argument: running number of a chunk over all items of the CTA.
  SEQPAR_DEVICE Stage& of(int number) { return tiles[number % kStages]; }
  SEQPAR_DEVICE Decays& decays(int number) { return decayStages[number % kStages]; }
  SEQPAR_DEVICE uint32_t full(int number) const { return ptx::sharedAddress(&barriers[number % kStages][0]); }
  SEQPAR_DEVICE uint32_t empty(int number) const { return ptx::sharedAddress(&barriers[number % kStages][1]); }
  SEQPAR_DEVICE void awaitFull(int number) const { ptx::mbarrierWaitParity(full(number), number / kStages & 1); }
  SEQPAR_DEVICE void awaitEmpty(int number) const {
    if (number >= kStages) ptx::mbarrierWaitParity(empty(number), (number / kStages & 1) ^ 1);
  }
};

template <class T, int kBlocks, class OfRecord = ChannelRecord<T, kBlocks>>
class ChannelPiecesKernel {
 public:
  using Arguments = ChannelChainTask;
  using Record = OfRecord;
  using Memory = ChannelPiecesMemory<T, kBlocks, Record>;
  static constexpr int kThreads = (kBlocks + 1) * warpgroup::kThreads, kChannels = Memory::kChannels;
  static_assert(sizeof(Memory) <= ptx::kSharedBytesSm90 && kChannels <= kThreads);

  SEQPAR_BOTH_INLINE static int64_t itemsOf(const ChannelChainTask& task) {
    return chainsOf<1>(task) * task.mapCount();
  }
  SEQPAR_DEVICE static void run(const ChannelChainTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32), group = ptx::uniform(warp / 4);
    if (thread == 0) {
      for (int i = 0; i < Memory::kStages; ++i) {
        ptx::mbarrierInit(memory.full(i), 1);
        ptx::mbarrierInit(memory.empty(i), 4 * kBlocks);
      }
      ptx::fenceMbarrierInit();
    }
    ptx::griddepcontrolWait();
    if (!task.isNeeded<Record>()) return;
    ptx::syncthreads();
    if (group == 0) {
      each(task, memory, [&](const ChannelPiece& item, int first) {
        if (thread == 0) load(task, memory, item, first);
      });
    } else {
      const Half me;
      each(task, memory,
           [&](const ChannelPiece& item, int first) { compute(task, memory, me, group - 1, item, first); });
    }
  }

 private:
  static constexpr bool kHalves = kHalfDecays<Record>;

  /// Calls act(item, running number of its first chunk) for the CTA's items, of which it leaves out chunks. All
  /// threads.
  template <class Act>
  SEQPAR_DEVICE static void each(const ChannelChainTask& task, Memory& memory, const Act& act) {
    const int64_t chains = chainsOf<1>(task);
    const int parts = task.mapCount() / task.pieces;
    int first = 0;
    for (int64_t index = ptx::block(); index < itemsOf(task); index += ptx::blocks()) {
      const int order = static_cast<int>(index / chains);
      const int piece = order % parts * task.pieces + task.pieces - 1 - order / parts;
      ChannelPiece item = ChannelPiece::at(task, index % chains, piece);
      if ((piece + 1) % task.pieces != 0) {
        const ChannelPiece next = ChannelPiece::at(task, index % chains, piece + 1);
        if (ptx::syncthreadsAnd(Decay(task, next).product == 0)) continue;
      }
      const Decay decay(task, item);
      if (item.column == 0) decay.store(task, item);
      const int needed = largest(memory, decay.needed);
      item.chunk += item.chunks - needed;
      item.chunks = needed;
      act(item, first);
      first += needed;
    }
  }
  /// Of a channel of a piece, per thread.
  struct Decay {
    float product = 1;
    int needed = 0;  ///< the last chunks of the piece, which later ones have not forgotten

    SEQPAR_DEVICE Decay(const ChannelChainTask& task, const ChannelPiece& item) {
      constexpr int kTogether = 16;
      for (int end = item.chunks; end > 0; end -= kTogether) {
        float decays[kTogether];
        SEQPAR_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          const int step = end - 1 - i;
          decays[i] = step < 0 ? 1 : task.recordOf<Record>(item, item.chunk + step).decays[channel()];
        }
        SEQPAR_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          if (product != 0 && i < end) ++needed;
          product *= kHalves ? decays[i] * decays[i] : decays[i];
        }
      }
    }
    SEQPAR_DEVICE static int channel() { return ptx::thread() % kChannels; }
    SEQPAR_DEVICE void store(const ChannelChainTask& task, const ChannelPiece& item) const {
      if (ptx::thread() >= kChannels) return;
      task.decaysOf(item, item.piece, kChannels)[channel()] = product;
      if (task.maps.transitions == nullptr || channel() >= task.dk) return;
      const int64_t map = task.headOf(item) * task.allPieces() + item.piece;
      task.maps.transitions[map * task.dk + channel()] = logf(product);
    }
  };
  /// Of all threads. Barriers.
  SEQPAR_DEVICE static int largest(Memory& memory, int number) {
    const int warp = ptx::thread() / 32;
    auto most = static_cast<float>(number);
    SEQPAR_UNROLL
    for (int lanes = 16; lanes > 0; lanes /= 2) most = fmaxf(most, ptx::shflXor(most, lanes));
    if (ptx::thread() % 32 == 0) memory.needed[warp] = most;
    ptx::syncthreads();
    SEQPAR_UNROLL
    for (int other = 0; other < kThreads / 32; ++other) most = fmaxf(most, memory.needed[other]);
    ptx::syncthreads();
    return static_cast<int>(most);
  }
  /// One thread.
  SEQPAR_DEVICE static void load(const ChannelChainTask& task, Memory& memory, const ChannelPiece& item, int first) {
    for (int step = 0; step < item.chunks; ++step) {
      const int number = first + step, chunk = item.chunk + step;
      const Record& record = task.recordOf<Record>(item, chunk);
      const uint32_t full = memory.full(number);
      auto& to = memory.of(number);
      memory.awaitEmpty(number);
      ptx::mbarrierArriveExpectTx(full, int{sizeof(to) + sizeof(typename Memory::Decays)});
      ptx::cpAsyncBulkLoad(to.keys, record.keys, int{sizeof(to.keys)}, full);
      ptx::cpAsyncBulkLoad(&memory.decays(number), record.decays, int{sizeof(typename Memory::Decays)}, full);
      ptx::tmaLoad(ptx::sharedAddress(to.values), task.values, full, item.column, item.head, chunk * kChunk,
                   item.sequence);
    }
  }
  /// The state of a block of channels.
  SEQPAR_DEVICE static void compute(const ChannelChainTask& task, Memory& memory, const Half& me, int block,
                                    const ChannelPiece& item, int first) {
    ChannelState<1> x;
    backward::clear(x[0]);
    const int channel = block * backward::kBlock;
    for (int number = first; number < first + item.chunks; ++number) {
      memory.awaitFull(number);
      const auto& decays = memory.decays(number);
      if (decays.forgets != 0) {
        decayState<true, 1>(x, decays.of + channel, me);
      } else {
        decayState<false, 1>(x, decays.of + channel, me);
      }
      multiplyState<T, 1>(x, memory.of(number).keys + block * kTile, memory.of(number).values);
      if constexpr (kHalves) decayState<false, 1>(x, decays.of + channel, me);
      ptx::syncwarp();
      if (me.lane == 0) ptx::mbarrierArrive(memory.empty(number));
    }
    float* const image = task.stateOf(item, item.piece, kChannels) + channel * kPanel;
    eachTile<1>(x, image, me, [](const float(&tile)[4], int, float* to) {
      ptx::storePair(to, tile[0], tile[1]);
      ptx::storePair(to + 2, tile[2], tile[3]);
    });
    if (task.maps.states == nullptr) return;
    const int64_t map = task.headOf(item) * task.allPieces() + item.piece;
    float* const to = task.maps.states + map * task.dk * task.dv + item.column;
    eachOfState<1>(x, task, item, me, channel, [&](float number, int64_t at) { to[at] = number; });
  }
};

}  // namespace seqpar::attn::forward_sm90
