// States of every chunk with channel decays on sm_90a (channel_chunks_sm90.h): S' of each chunk from k' and v, and E'
// from q' and dOut, as chunk_states_sm90.h stores states of token decays. With one direction, only E'.
//
// Work      a CTA of 384 threads, one per SM, takes items (sequence, head, 128 or 64 columns of v, 128 channels,
//           direction) in steps of the grid
// Roles     warpgroups 0, 1: wgmma, 64 channels of the state each; 2: one thread loads, one copies images of states to
//           device memory
// Tiles     64 tokens x 128; the state 128 x kColumns fp32 in registers
// Smem      five stages of keys and values (16 KiB each; 64 columns: seven), and decays; two images of states
// Barriers  mbarriers of a stage: full, empty; of an image: stored, copied
// Overlap   later chunks are loaded, and an image is stored, while a chunk is multiplied. The next kernel may start
//           while this one runs; it waits before it reads states. This one may run while a scan between ranks sends
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/arch/tma.h"
#include "kernels/attn/linear/backward/channel_chunks_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, int kColumns>
struct ChannelStatesMemory {
  static constexpr int kStages = kColumns == kBlock ? 5 : 7, kImages = 2;
  static constexpr int kTileOfValues = kChunk * kColumns, kImageElements = kBlock * kColumns;
  T tiles[kStages][kTile + kTileOfValues];
  T images[kImages][kImageElements];
  alignas(16) float decays[kStages][kBlock];
  alignas(8) uint64_t barriers[kStages][2], imageBarriers[kImages][2];
  alignas(16) char item[kItemBytes];

  SEQPAR_DEVICE float* kept() { return reinterpret_cast<float*>(images); }  ///< of channel_maps_sm90.h
  // Argument: running number of a chunk over all items of the CTA.
  SEQPAR_DEVICE T* keys(int number) { return tiles[number % kStages]; }
  SEQPAR_DEVICE T* values(int number) { return tiles[number % kStages] + kTile; }
  SEQPAR_DEVICE T* image(int number) { return images[number % kImages]; }
  SEQPAR_DEVICE uint32_t full(int number) const { return ptx::sharedAddress(&barriers[number % kStages][0]); }
  SEQPAR_DEVICE uint32_t empty(int number) const { return ptx::sharedAddress(&barriers[number % kStages][1]); }
  SEQPAR_DEVICE uint32_t stored(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][0]); }
  SEQPAR_DEVICE uint32_t copied(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][1]); }
  SEQPAR_DEVICE static int parity(int number) { return number / kStages & 1; }
  /// Returns the barrier `full` of a stage that is empty.
  SEQPAR_DEVICE uint32_t awaitEmpty(int number) const {
    if (number >= kStages) ptx::mbarrierWaitParity(empty(number), parity(number) ^ 1);
    return full(number);
  }
  SEQPAR_DEVICE static int imageParity(int number) { return number / kImages & 1; }
};

/// The kernel.
template <class T, int kColumns>
struct ChannelStatesKernel {
  using Memory = ChannelStatesMemory<T, kColumns>;
  using Record = ChunkRecord<T>;
  using StateOf = State<T, Half, 1, kColumns>;
  static constexpr int kThreads = Half::kThreads + warpgroup::kThreads;
  static_assert(sizeof(Memory) <= ptx::kSharedBytesSm90);

  SEQPAR_BOTH_INLINE static int columnItems(const ChannelTask& task) { return (task.dv + kColumns - 1) / kColumns; }
  SEQPAR_BOTH_INLINE static int64_t itemsOf(const ChannelTask& task) {
    return int64_t{task.batch} * task.heads * columnItems(task) * task.keyBlocks * task.chunks.directions;
  }

  SEQPAR_DEVICE static void run(const ChannelTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32);
    if (thread == 0) {
      for (int stage = 0; stage < Memory::kStages; ++stage) {
        ptx::mbarrierInit(memory.full(stage), 1);
        ptx::mbarrierInit(memory.empty(stage), Half::kThreads / 32);
      }
      for (int image = 0; image < Memory::kImages; ++image) {
        ptx::mbarrierInit(memory.stored(image), Half::kThreads);
        ptx::mbarrierInit(memory.copied(image), 1);
      }
      ptx::fenceMbarrierInit();
    }
    if (task.recordsVisible == Visible::AfterWait) ptx::griddepcontrolWait();
    ptx::griddepcontrolLaunchDependents();
    ptx::syncthreads();
    if (!task.isLeft()) runRoles(task, memory, thread, warp);
    if (task.recordsVisible == Visible::AtStart) ptx::griddepcontrolWait();
  }

 private:
  SEQPAR_DEVICE static void runRoles(const ChannelTask& task, Memory& memory, int thread, int warp) {
    if (warp < Half::kThreads / 32) {
      each(task, memory, [](const Walk& walk) { walk.multiply(); });
    } else if (thread == Half::kThreads) {
      each(task, memory, [](const Walk& walk) { walk.load(); });
    } else if (thread == Half::kThreads + 32) {
      each(task, memory, [](const Walk& walk) { walk.copy(); });
    }
  }

  /// One item, in the order of its direction.
  struct Walk {
    const ChannelTask& task;
    Memory& memory;
    bool reverse;
    int keyBlock, column, head, sequence;
    int chunks, first;  ///< first: running number of the first chunk

    SEQPAR_DEVICE int chunkOf(int step) const { return reverse ? chunks - 1 - step : step; }

    SEQPAR_DEVICE void load() const {
      const CUtensorMap& values = reverse ? task.outputs : task.values;
      constexpr int kDecayBytes = kBlock * int{sizeof(float)}, kKeyBytes = kTile * int{sizeof(T)};
      for (int step = 0; step < chunks; ++step) {
        const int number = first + step, chunk = chunkOf(step);
        const Record& record = task.recordOf<Record>(sequence, head, chunk);
        const uint32_t full = memory.awaitEmpty(number);
        ptx::mbarrierArriveExpectTx(full, kKeyBytes + Memory::kTileOfValues * int{sizeof(T)} + kDecayBytes);
        const T* keys = reverse ? record.queries : record.keys;
        ptx::cpAsyncBulkLoad(memory.keys(number), keys + keyBlock * kTile, kKeyBytes, full);
        ptx::cpAsyncBulkLoad(memory.decays[number % Memory::kStages], record.decays + keyBlock * kBlock, kDecayBytes,
                             full);
        SEQPAR_UNROLL
        for (int panel = 0; panel < kColumns / kPanel; ++panel) {
          ptx::tmaLoad(ptx::sharedAddress(memory.values(number) + panel * kTilePanel), values, full,
                       column + panel * kPanel, head, chunk * kChunk, sequence);
        }
      }
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
        const int number = first + step;
        ptx::mbarrierWaitParity(memory.full(number), Memory::parity(number));
        const float* of = memory.decays[number % Memory::kStages] + row;
        const float own = of[0], own8 = of[8];
        const bool strong = Record::isStrong(own);
        const float half = strong ? 1.f : own, half8 = strong ? 1.f : own8;
        state.scale(decay * half, decay8 * half8);
        decay = half;
        decay8 = half8;
        typename StateOf::Words words;
        state.pack(words);
        if (strong) state.decay(-own, -own8);
        warpgroup::fenceOperand(state.x);
        warpgroup::arrive();
        state.add(memory.keys(number), memory.values(number), me);
        warpgroup::commit();
        if (number >= Memory::kImages) ptx::mbarrierWaitParity(memory.copied(number), Memory::imageParity(number) ^ 1);
        StateOf::store(memory.image(number), words, me);
        warpgroup::fenceProxyAsync();
        ptx::mbarrierArrive(memory.stored(number));
        warpgroup::wait<0>();
        warpgroup::fenceOperand(state.x);
        ptx::syncwarp();
        if (me.lane == 0) ptx::mbarrierArrive(memory.empty(number));
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
      const int directions = task.chunks.directions;  // one: the forward has kept the states
      const bool reverse = directions == 1 || index % 2 != 0;
      int64_t number = index / directions;
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
