// States of every chunk with channel decays on sm_90a (channel_chunks_sm90.h): S' of each chunk from k' and v, and E'
// from q' and dOut, as chunk_states_sm90.h stores states of token decays.
//
// Work      a CTA of 384 or 512 threads, one per SM, takes items (sequence, head, 128 or 64 columns of v, 128 channels,
//           direction) in steps of the grid
// Roles     warpgroups 0, 1: wgmma, 64 channels of the state each; 2: one thread loads, one copies images of states to
//           device memory. kScales: 3 computes q' or k' and remainders, which a third thread of 2 stores
// Tiles     64 tokens x 128; the state 128 x kColumns fp32 in registers
// Smem      five stages of keys and values (16 KiB each; 64 columns: six), and decays; two images of states.
//           Remainders of keys are in a stage of their own; kScales: after L of the chunk
// Barriers  mbarriers of a stage: full, empty; of an image: stored, copied; of a chunk: scaled
// Overlap   later chunks are loaded, and an image is stored, while a chunk is multiplied. The next kernel may start
//           while this one runs; it waits before it reads states. This one may run while a scan between ranks sends
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/arch/tma.h"
#include "kernels/attn/linear/backward/channel_chunks_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, int kColumns>
struct ChannelStatesMemory {
  static constexpr int kStages = kColumns == kBlock ? 5 : 6, kImages = 2, kScaled = 3;
  static_assert(2 * kScaled >= kStages);
  static constexpr int kTileOfValues = kChunk * kColumns, kImageElements = kBlock * kColumns;
  T tiles[kStages][kTile + kTileOfValues];
  T images[kImages][kImageElements];
  alignas(16) float decays[kStages][kBlock];
  alignas(8) uint64_t barriers[kStages][2], imageBarriers[kImages][2], scaledBarriers[kScaled];
  alignas(16) char item[kItemBytes];

  SEQPAR_DEVICE float* kept() { return reinterpret_cast<float*>(images); }  ///< of channel_maps_sm90.h
  // Argument: running number of a stage, or of a chunk, over all items of the CTA.
  SEQPAR_DEVICE T* keys(int number) { return tiles[number % kStages]; }
  SEQPAR_DEVICE T* values(int number) { return tiles[number % kStages] + kTile; }
  SEQPAR_DEVICE T* image(int number) { return images[number % kImages]; }
  SEQPAR_DEVICE uint32_t full(int number) const { return ptx::sharedAddress(&barriers[number % kStages][0]); }
  SEQPAR_DEVICE uint32_t empty(int number) const { return ptx::sharedAddress(&barriers[number % kStages][1]); }
  SEQPAR_DEVICE uint32_t stored(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][0]); }
  SEQPAR_DEVICE uint32_t copied(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][1]); }
  SEQPAR_DEVICE uint32_t scaled(int number) const { return ptx::sharedAddress(&scaledBarriers[number % kScaled]); }
  SEQPAR_DEVICE void awaitScaled(int number) const { ptx::mbarrierWaitParity(scaled(number), number / kScaled & 1); }
  SEQPAR_DEVICE static int parity(int number) { return number / kStages & 1; }
  /// Returns the barrier `full` of a stage that is empty.
  SEQPAR_DEVICE uint32_t awaitEmpty(int number) const {
    if (number >= kStages) ptx::mbarrierWaitParity(empty(number), parity(number) ^ 1);
    return full(number);
  }
  SEQPAR_DEVICE static int imageParity(int number) { return number / kImages & 1; }
};

/// kScales: the kernel computes q' and k' from q, k and L, and stores their remainders for the gradients' kernel.
template <class T, int kColumns, bool kScales = false>
struct ChannelStatesKernel {
  using Memory = ChannelStatesMemory<T, kColumns>;
  using Record = ChunkRecord<T>;
  using StateOf = State<T, Half, 1, kColumns>;
  static constexpr int kScalers = kScales ? warpgroup::kThreads : 0;
  static constexpr int kThreads = Half::kThreads + warpgroup::kThreads + kScalers;
  static_assert(sizeof(Memory) <= ptx::kSharedBytesSm90);

  SEQPAR_BOTH_INLINE static int columnItems(const ChannelTask& task) { return (task.dv + kColumns - 1) / kColumns; }
  SEQPAR_BOTH_INLINE static int64_t itemsOf(const ChannelTask& task) {
    return int64_t{task.batch} * task.heads * columnItems(task) * task.keyBlocks * 2;
  }

  SEQPAR_DEVICE static void run(const ChannelTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32);
    if (thread == 0) {
      for (int stage = 0; stage < Memory::kStages; ++stage) {
        ptx::mbarrierInit(memory.full(stage), 1);
        ptx::mbarrierInit(memory.empty(stage), Half::kThreads / 32 + (kScales ? 1 : 0));
      }
      for (int image = 0; image < Memory::kImages; ++image) {
        ptx::mbarrierInit(memory.stored(image), Half::kThreads);
        ptx::mbarrierInit(memory.copied(image), 1);
      }
      for (int i = 0; kScales && i < Memory::kScaled; ++i) ptx::mbarrierInit(memory.scaled(i), kScalers);
      ptx::fenceMbarrierInit();
    }
    if (task.recordsVisible == Visible::AfterWait) ptx::griddepcontrolWait();
    ptx::griddepcontrolLaunchDependents();
    ptx::syncthreads();
    if (!task.isStrong()) runRoles(task, memory, thread, warp);
    if (task.recordsVisible == Visible::AtStart) ptx::griddepcontrolWait();
  }

 private:
  SEQPAR_DEVICE static void runRoles(const ChannelTask& task, Memory& memory, int thread, int warp) {
    if (warp < Half::kThreads / 32) {
      each(task, memory, [](const Walk& walk) { walk.multiply(); });
    } else if (kScales && warp >= Half::kThreads / 32 + 4) {
      each(task, memory, [](const Walk& walk) { walk.scale(); });
    } else if (thread == Half::kThreads) {
      each(task, memory, [](const Walk& walk) { walk.load(); });
    } else if (thread == Half::kThreads + 32) {
      each(task, memory, [](const Walk& walk) { walk.copy(); });
    } else if (kScales && thread == Half::kThreads + 64) {
      each(task, memory, [](const Walk& walk) { walk.storeRests(); });
    }
  }

  /// One item, in the order of its direction.
  struct Walk {
    const ChannelTask& task;
    Memory& memory;
    bool reverse;
    int keyBlock, column, head, sequence;
    int chunks, first;  ///< first: running number of the first chunk

    /// Of the chunk's tiles; the next one is that of its remainders, with kScales first of L.
    SEQPAR_DEVICE int stageOf(int step) const { return 2 * (first + step); }
    SEQPAR_DEVICE int chunkOf(int step) const { return reverse ? chunks - 1 - step : step; }

    SEQPAR_DEVICE void load() const {
      const CUtensorMap& values = reverse ? task.outputs : task.values;
      constexpr int kDecayBytes = kBlock * int{sizeof(float)}, kKeyBytes = kTile * int{sizeof(T)};
      for (int step = 0; step < chunks; ++step) {
        const int number = stageOf(step), chunk = chunkOf(step);
        const Record& record = task.recordOf<Record>(sequence, head, chunk);
        const uint32_t full = memory.awaitEmpty(number);
        ptx::mbarrierArriveExpectTx(full, kKeyBytes + Memory::kTileOfValues * int{sizeof(T)} + kDecayBytes);
        if constexpr (kScales) {
          const CUtensorMap& keys = reverse ? task.queries : task.keys;
          SEQPAR_UNROLL
          for (int panel = 0; panel < kBlock / kPanel; ++panel) {
            ptx::tmaLoad(ptx::sharedAddress(memory.keys(number) + panel * kTilePanel), keys, full,
                         keyBlock * kBlock + panel * kPanel, head, chunk * kChunk, sequence);
          }
        } else {
          const T* keys = reverse ? record.queries : record.keys;
          ptx::cpAsyncBulkLoad(memory.keys(number), keys + keyBlock * kTile, kKeyBytes, full);
        }
        ptx::cpAsyncBulkLoad(memory.decays[number % Memory::kStages], record.decays + keyBlock * kBlock, kDecayBytes,
                             full);
        SEQPAR_UNROLL
        for (int panel = 0; panel < kColumns / kPanel; ++panel) {
          ptx::tmaLoad(ptx::sharedAddress(memory.values(number) + panel * kTilePanel), values, full,
                       column + panel * kPanel, head, chunk * kChunk, sequence);
        }
        const uint32_t next = memory.awaitEmpty(number + 1);
        ptx::mbarrierArriveExpectTx(next, kKeyBytes);
        const void* const others = kScales ? static_cast<const void*>(record.logs[keyBlock])
                                           : static_cast<const void*>(record.rests[keyBlock][reverse ? 0 : 1]);
        ptx::cpAsyncBulkLoad(memory.keys(number + 1), others, kKeyBytes, next);
      }
    }

    SEQPAR_DEVICE void scale() const {
      const int thread = ptx::thread() - (kThreads - kScalers);
      const GroupPosition me(thread, 0, ptx::uniform(thread / 32));
      for (int step = 0; step < chunks; ++step) {
        const int number = stageOf(step);
        ptx::mbarrierWaitParity(memory.full(number), Memory::parity(number));
        ptx::mbarrierWaitParity(memory.full(number + 1), Memory::parity(number + 1));
        if (reverse) {
          scaleTile<false>(memory.keys(number), memory.keys(number + 1), task.scale, me);
        } else {
          scaleTile<true>(memory.keys(number), memory.keys(number + 1), 1, me);
        }
        warpgroup::fenceProxyAsync();
        ptx::mbarrierArrive(memory.scaled(first + step));
      }
    }
    /// Replaces q or k by q' or k', and L by remainders.
    template <bool kKeys>
    SEQPAR_DEVICE static void scaleTile(T* keys, T* others, float scale, const GroupPosition& me) {
      constexpr int kPairs = kBlock / 16;
      uint32_t logs[kPairs][4];
      SEQPAR_UNROLL
      for (int i = 0; i < kPairs; ++i) {
        ptx::load(logs[i], others + (i * warpgroup::kThreads + me.warp * 32 + me.lane) * 8);
      }
      ptx::barrierSync<kOfScores, warpgroup::kThreads>();  // L is not read any more
      SEQPAR_UNROLL
      for (int i = 0; i < kPairs; ++i) {
        const int n = 2 * i, panel = n / 8 * kTilePanel;
        uint32_t words[4], rests[4];
        ptx::ldmatrixX4(words, me.at(keys + panel, n % 8));
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) rests[e] = scaleWord<T, kKeys>(words[e], logs[i][e], scale);
        ptx::stmatrixX4(me.at(keys + panel, n % 8), words);
        ptx::stmatrixX4(me.at(others + panel, n % 8), rests);
      }
    }
    /// One thread. The items of a chunk take turns.
    SEQPAR_DEVICE void storeRests() const {
      const int columns = columnItems(task);
      for (int step = 0; step < chunks; ++step) {
        const int number = stageOf(step), chunk = chunkOf(step);
        memory.awaitScaled(first + step);
        if (chunk % columns == column / kColumns) {
          Record& record = task.recordOf<Record>(sequence, head, chunk);
          T* const to = record.rests[keyBlock][reverse ? 0 : 1];
          ptx::cpAsyncBulkStore(to, memory.keys(number + 1), kTile * int{sizeof(T)});
          ptx::cpAsyncBulkCommitGroup();
          ptx::cpAsyncBulkWaitGroupRead<0>();
        }
        ptx::mbarrierArrive(memory.empty(number));
        ptx::mbarrierArrive(memory.empty(number + 1));
      }
      ptx::cpAsyncBulkWaitGroup();
    }

    SEQPAR_DEVICE void multiply() const {
      const Half me;
      const int row = StateOf::row(me);
      StateOf state;
      state.clear();
      const float* known = reverse ? task.finalGradient : task.initial;
      const int keys = task.dk - keyBlock * kBlock, values = task.dv - column;
      if (known != nullptr) {
        const Incoming from{nullptr, nullptr, 0, 0, 0, 1, Maps::Prefix, known + offset()};
        state.addFull(from, task.dv, keys, values, me);
      }
      float decay = 1, decay8 = 1;
      for (int step = 0; step < chunks; ++step) {
        const int number = stageOf(step), image = first + step;
        ptx::mbarrierWaitParity(memory.full(number), Memory::parity(number));
        const float* of = memory.decays[number % Memory::kStages] + row;
        const float own = of[0], own8 = of[8];
        state.scale(decay * own, decay8 * own8);
        decay = own;
        decay8 = own8;
        typename StateOf::Words words;
        state.pack(words);
        if constexpr (kScales) memory.awaitScaled(image);
        warpgroup::fenceOperand(state.x);
        warpgroup::arrive();
        state.add(memory.keys(number), memory.values(number), me);
        if constexpr (!kScales) ptx::mbarrierWaitParity(memory.full(number + 1), Memory::parity(number + 1));
        state.add(memory.keys(number + 1), memory.values(number), me);
        warpgroup::commit();
        if (image >= Memory::kImages) ptx::mbarrierWaitParity(memory.copied(image), Memory::imageParity(image) ^ 1);
        StateOf::store(memory.image(image), words, me);
        warpgroup::fenceProxyAsync();
        ptx::mbarrierArrive(memory.stored(image));
        warpgroup::wait<0>();
        warpgroup::fenceOperand(state.x);
        ptx::syncwarp();
        if (me.lane == 0) {
          ptx::mbarrierArrive(memory.empty(number));
          ptx::mbarrierArrive(memory.empty(number + 1));
        }
      }
      if (!reverse || task.dInitial == nullptr) return;
      state.scale(decay, decay8);
      state.storeFull(task.dInitial + offset(), task.dv, keys, values, me);
    }
    /// Of the item's first element in [batch][heads][dk][dv].
    SEQPAR_DEVICE int64_t offset() const {
      return ((int64_t{sequence} * task.heads + head) * task.dk + int64_t{keyBlock} * kBlock) * task.dv + column;
    }

    SEQPAR_DEVICE void copy() const {
      constexpr int kElements = ChunkStates::kElements, kBytes = kElements * int{sizeof(T)};
      T* const to = static_cast<T*>(reverse ? task.chunks.gradients : task.chunks.states);
      const auto at = [&](int panel, int step) {
        return to + task.chunks.panelAt(task, sequence, head, keyBlock, column / kPanel + panel, chunkOf(step));
      };
      const bool both = kColumns > kPanel && task.dv - column > kPanel;
      for (int step = 0; step < chunks; ++step) {
        const int number = first + step;
        ptx::mbarrierWaitParity(memory.stored(number), Memory::imageParity(number));
        ptx::cpAsyncBulkStore(at(0, step), memory.image(number), kBytes);
        if (both) ptx::cpAsyncBulkStore(at(1, step), memory.image(number) + kElements, kBytes);
        ptx::cpAsyncBulkCommitGroup();
        if (step > 0) {
          ptx::cpAsyncBulkWaitGroupRead<1>();
          ptx::mbarrierArrive(memory.copied(number - 1));
        }
      }
      if (chunks == 0) return;
      ptx::cpAsyncBulkWaitGroup();
      ptx::mbarrierArrive(memory.copied(first + chunks - 1));
    }
  };

  /// Calls act(walk) for the CTA's items.
  template <class Act>
  SEQPAR_DEVICE static void each(const ChannelTask& task, Memory& memory, const Act& act) {
    const int columns = columnItems(task);
    int first = 0;
    for (int64_t index = ptx::block(); index < itemsOf(task); index += ptx::blocks()) {
      const bool reverse = index % 2 != 0;
      int64_t number = index / 2;
      const int keyBlock = static_cast<int>(number % task.keyBlocks);
      number /= task.keyBlocks;
      const int column = static_cast<int>(number % columns) * kColumns;
      number /= columns;
      const int head = static_cast<int>(number % task.heads), sequence = static_cast<int>(number / task.heads);
      act(Walk{task, memory, reverse, keyBlock, column, head, sequence, task.chunksOfSegment, first});
      first += task.chunksOfSegment;
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
