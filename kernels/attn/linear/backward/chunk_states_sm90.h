// States of every chunk on sm_90a, for kernels that process chunks in parallel, with token decays or none: the state
// before each chunk, from keys and values, and the gradient of the state after each chunk, from queries and dOut.
//
// Work      a CTA of 512 threads, one per SM, takes items (sequence, head or pair of heads, 128 columns of v, segment,
//           128 channels of k, direction) in steps of the grid
// Roles     warpgroups 0, 1: consumers, wgmma, 64 rows of the state each; 2: scales values by their decays; 3: two
//           warps compute factors of tokens, one issues TMA loads, one copies images of states to device memory
// Tiles     64 tokens x 128; the state 128 x 128 fp32 in registers of the consumers. Pair: a panel of values, and of
//           the state, is a head
// Smem      five stages of keys and values (16 KiB each), two images of states (32 KiB)
// Barriers  mbarriers of a stage: full (tiles and factors), prepared, empty; of an image: stored, copied.
//           __syncthreads(): items
// Overlap   later chunks are loaded and scaled, and an image is stored, while a chunk is multiplied. Loads of gates are
//           in warps without fence.proxy.async, which would wait for them. The next kernel may start while this one
//           runs; it waits before it reads states
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/backward/chunk_factors_sm90.h"
#include "kernels/attn/linear/backward/chunk_states.h"
#include "kernels/attn/linear/backward/loads_sm90.h"

namespace seqpar::attn::backward::sm90 {

struct ChunkStatesTask : MappedTask {
  ChunkStates to;
};

template <class T>
struct ChunkStatesMemory {
  static constexpr int kStages = 5, kImages = 2;
  T tiles[kStages][2][kTile];  ///< keys, values
  T images[kImages][kMatrix];
  alignas(16) float factors[kStages][kPair][kChunk];  ///< of values, per head
  float totals[kStages][kPair];                       ///< the decay of a chunk, per head
  alignas(8) uint64_t barriers[kStages][3], imageBarriers[kImages][2];
  alignas(16) char item[kItemBytes];

  // Argument: running number of a chunk or image over all items of the CTA.
  SEQPAR_DEVICE T* keys(int number) { return tiles[number % kStages][0]; }
  SEQPAR_DEVICE T* values(int number) { return tiles[number % kStages][1]; }
  SEQPAR_DEVICE T* image(int number) { return images[number % kImages]; }
  SEQPAR_DEVICE uint32_t full(int number) const { return ptx::sharedAddress(&barriers[number % kStages][0]); }
  SEQPAR_DEVICE uint32_t prepared(int number) const { return ptx::sharedAddress(&barriers[number % kStages][1]); }
  SEQPAR_DEVICE uint32_t empty(int number) const { return ptx::sharedAddress(&barriers[number % kStages][2]); }
  SEQPAR_DEVICE uint32_t stored(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][0]); }
  SEQPAR_DEVICE uint32_t copied(int number) const { return ptx::sharedAddress(&imageBarriers[number % kImages][1]); }
  SEQPAR_DEVICE static int parity(int number) { return number / kStages & 1; }
  SEQPAR_DEVICE static int imageParity(int number) { return number / kImages & 1; }
  SEQPAR_DEVICE void awaitEmpty(int number) const {
    if (number >= kStages) ptx::mbarrierWaitParity(empty(number), parity(number) ^ 1);
  }
};

/// kHeads: of an item. kGated: with input gates.
template <class T, int kHeads, bool kGated>
struct ChunkStatesKernel {
  using Arguments = ChunkStatesTask;
  using Memory = ChunkStatesMemory<T>;
  using StateOf = State<T, Half>;
  using ByToken = ChunkFactors<T, kHeads, kGated>;
  static constexpr int kConsumers = Half::kThreads, kScalers = warpgroup::kThreads,
                       kThreads = kConsumers + kScalers + warpgroup::kThreads;
  static constexpr int kConsumerRegisters = 168, kScalerRegisters = 88;
  static_assert(kConsumers * kConsumerRegisters + 2 * kScalers * kScalerRegisters <= warpgroup::kSmRegisters);

  SEQPAR_DEVICE static void run(const ChunkStatesTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32);
    if (thread == 0) {
      for (int stage = 0; stage < Memory::kStages; ++stage) {
        ptx::mbarrierInit(memory.full(stage), 1 + 1);
        ptx::mbarrierInit(memory.prepared(stage), kScalers);
        ptx::mbarrierInit(memory.empty(stage), kConsumers / 32);
      }
      for (int image = 0; image < Memory::kImages; ++image) {
        ptx::mbarrierInit(memory.stored(image), kConsumers);
        ptx::mbarrierInit(memory.copied(image), 1);
      }
      ptx::fenceMbarrierInit();
    }
    ptx::griddepcontrolWait();
    ptx::griddepcontrolLaunchDependents();
    if (warp < kConsumers / 32) {
      warpgroup::setmaxnregInc<kConsumerRegisters>();
      each(task, memory, [](const Walk& walk) { walk.multiply(); });
    } else if (warp < (kConsumers + kScalers) / 32) {
      warpgroup::setmaxnregDec<kScalerRegisters>();
      each(task, memory, [](const Walk& walk) { walk.scale(); });
    } else {
      warpgroup::setmaxnregDec<kScalerRegisters>();
      const int role = warp % 4, lane = thread % 32;
      each(task, memory, [&](const Walk& walk) {
        if (role < ByToken::kWarps) ByToken(task, walk.item, walk.reverse, lane).run(memory, walk.firstChunk, role);
        if (role == 2 && lane == 0) walk.load();
        if (role == 3 && lane == 0) walk.copy();
        ptx::syncwarp();
      });
    }
  }

 private:
  /// One item, in the order of its direction.
  struct Walk {
    const ChunkStatesTask& task;
    const Item<T>& item;
    Memory& memory;
    bool reverse;
    int chunks, firstChunk, firstImage;  ///< running numbers

    SEQPAR_DEVICE int chunkOf(int step) const { return reverse ? chunks - 1 - step : step; }
    SEQPAR_DEVICE int64_t tokenOf(int64_t first, int step) const { return first + int64_t{chunkOf(step)} * kChunk; }

    /// One thread.
    SEQPAR_DEVICE void load() const {
      const CUtensorMap &keys = reverse ? task.queries : task.keys, &values = reverse ? task.outputs : task.values;
      const int sequence = item.sequence, channel = item.keyBlock * kBlock, qkHead = item.head / task.group,
                head = item.head, column = item.valueBlock * kBlock;
      const int64_t firstToken = item.first;
      for (int step = 0; step < chunks; ++step) {
        const int number = firstChunk + step, token = static_cast<int>(tokenOf(firstToken, step));
        const uint32_t full = memory.full(number);
        memory.awaitEmpty(number);
        ptx::mbarrierArriveExpectTx(full, 2 * kTile * int{sizeof(T)});
        SEQPAR_UNROLL
        for (int panel = 0; panel < 2; ++panel) {
          const int first = panel * kPanel, at = panel * kTilePanel;
          ptx::tmaLoad(ptx::sharedAddress(memory.keys(number) + at), keys, full, channel + first, qkHead, token,
                       sequence);
          ptx::tmaLoad(ptx::sharedAddress(memory.values(number) + at), values, full, kHeads == 1 ? column + first : 0,
                       kHeads == 1 ? head : head + panel, token, sequence);
        }
      }
    }

    /// Scalers: a warp scales half of the rows of a panel of values.
    SEQPAR_DEVICE void scale() const {
      const int thread = ptx::thread() - kConsumers, lane = thread % 32, warp = ptx::uniform(thread / 32 % 4);
      const int panel = warp % 2, row = warp / 2 * 32 + lane / 8 * 8, at = panel * kTilePanel + row * kPanel;
      const int64_t first = item.first, end = item.end;
      for (int step = 0; step < chunks; ++step) {
        const int number = firstChunk + step;
        const int64_t left = end - tokenOf(first, step);
        ptx::mbarrierWaitParity(memory.full(number), Memory::parity(number));
        scaleRows(memory.values(number) + at, memory.factors[number % Memory::kStages][kHeads == 1 ? 0 : panel] + row,
                  lane);
        if (left < kChunk) clearRows(memory.keys(number) + at, static_cast<int>(left) - row, lane);
        warpgroup::fenceProxyAsync();
        ptx::mbarrierArrive(memory.prepared(number));
      }
    }

    SEQPAR_DEVICE void multiply() const {
      const Half me;
      StateOf state;
      loadIncoming(state, me);
      const int ofFirst = chunksOfFirst(), every = task.to.every;
      int image = firstImage;
      for (int step = 0, untilKept = 0; step < chunks; ++step, --untilKept) {
        const int number = firstChunk + step;
        const bool keeps = untilKept == 0;
        if (keeps) untilKept = step == 0 ? ofFirst : every;
        typename StateOf::Words words;
        if (keeps) state.pack(words);
        ptx::mbarrierWaitParity(memory.prepared(number), Memory::parity(number));
        decay(state, memory.totals[number % Memory::kStages]);
        warpgroup::arrive();
        state.add(memory.keys(number), memory.values(number), me);
        warpgroup::commit();
        if (keeps) {
          if (image >= Memory::kImages) ptx::mbarrierWaitParity(memory.copied(image), Memory::imageParity(image) ^ 1);
          StateOf::store(memory.image(image), words, me);
          warpgroup::fenceProxyAsync();
          ptx::mbarrierArrive(memory.stored(image));
          ++image;
        }
        warpgroup::wait<0>();
        warpgroup::fenceOperand(state.x);
        ptx::syncwarp();
        if (me.lane == 0) ptx::mbarrierArrive(memory.empty(number));
      }
      if (reverse ? storesInitial(task, item) : storesFinal()) storeFull(state, me);
    }

    /// One thread: copies images to device memory.
    SEQPAR_DEVICE void copy() const {
      const int64_t number = task.to.numberOf(item);
      T* to[2];
      SEQPAR_UNROLL
      for (int panel = 0; panel < 2; ++panel) {
        to[panel] = static_cast<T*>(reverse ? task.to.gradients : task.to.states) +
                    task.to.panelAt(task, item.sequence, kHeads == 1 ? item.head : item.head + panel, item.keyBlock,
                                    kHeads == 1 ? item.valueBlock * 2 + panel : 0, number);
      }
      const bool both = kHeads > 1 || item.values > kPanel;
      const int ofFirst = chunksOfFirst(), every = task.to.every, firstGroup = reverse ? (chunks - 1) / every : 0;
      int image = firstImage;
      for (int step = 0; step < chunks; step += step == 0 ? ofFirst : every) {
        const int before = image - firstImage, group = firstGroup + (reverse ? -before : before);
        const int64_t offset = int64_t{group} * ChunkStates::kElements;
        ptx::mbarrierWaitParity(memory.stored(image), Memory::imageParity(image));
        ptx::cpAsyncBulkStore(to[0] + offset, memory.image(image), kMatrixPanelBytes);
        if (both) ptx::cpAsyncBulkStore(to[1] + offset, memory.image(image) + kMatrixPanel, kMatrixPanelBytes);
        ptx::cpAsyncBulkCommitGroup();
        if (image > firstImage) {
          ptx::cpAsyncBulkWaitGroupRead<1>();
          ptx::mbarrierArrive(memory.copied(image - 1));
        }
        ++image;
      }
      if (image > firstImage) {
        ptx::cpAsyncBulkWaitGroup();
        ptx::mbarrierArrive(memory.copied(image - 1));
      }
    }

   private:
    /// Chunks of the first group in the direction. The state before each group is kept.
    SEQPAR_DEVICE int chunksOfFirst() const { return reverse ? (chunks - 1) % task.to.every + 1 : task.to.every; }
    /// Eight rows of a lane's unit. Rows with a factor of 0 become 0, whatever their elements.
    SEQPAR_DEVICE static void scaleRows(T* rows, const float* factors, int lane) {
      constexpr int kRows = 8;
      uint32_t words[kRows][4], by[kRows];
      SEQPAR_UNROLL
      for (int i = 0; i < kRows; ++i) ptx::load(words[i], rows + i * kPanel + ((lane % 8) ^ i) * 8);
      SEQPAR_UNROLL
      for (int i = 0; i < kRows; i += 4) ptx::load(reinterpret_cast<uint32_t(&)[4]>(by[i]), factors + i);
      SEQPAR_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const float factor = asFloat(by[i]);
        SEQPAR_UNROLL
        for (uint32_t& word : words[i]) {
          const uint32_t scaled = ptx::pack<T>(ptx::lowOf<T>(word) * factor, ptx::highOf<T>(word) * factor);
          word = factor == 0 ? 0 : scaled;
        }
        ptx::store(rows + i * kPanel + ((lane % 8) ^ i) * 8, words[i]);
      }
    }
    /// Zeroes the rows from `valid` on, counted from the lane's first one: they may belong to another sequence.
    SEQPAR_DEVICE static void clearRows(T* rows, int valid, int lane) {
      constexpr uint32_t kZeros[4] = {0, 0, 0, 0};
      SEQPAR_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (i >= valid) ptx::store(rows + i * kPanel + lane % 8 * 8, kZeros);
      }
    }

    static constexpr int kOfPanel = StateOf::kTiles8 / 2;  ///< tiles of a panel's columns

    SEQPAR_DEVICE static void decay(StateOf& state, const float (&totals)[kPair]) {
      const float own = totals[0], second = totals[kHeads - 1];
      if (own != 0 && second != 0) {
        state.template scale<0, kOfPanel>(own, own);
        state.template scale<kOfPanel, 2 * kOfPanel>(second, second);
      } else {
        state.template decay<0, kOfPanel>(own, own);
        state.template decay<kOfPanel, 2 * kOfPanel>(second, second);
      }
    }

    SEQPAR_DEVICE Incoming incoming(int which) const {
      return reverse ? Incoming::after(task, item, which) : Incoming::before(task, item, which);
    }
    SEQPAR_DEVICE void loadIncoming(StateOf& state, const Half& me) const {
      state.clear();
      if constexpr (kHeads == 1) {
        state.addFull(incoming(0), task.dv, item.keys, item.values, me);
      } else {
        state.template addFull<0, kOfPanel>(incoming(0), task.dv, item.keys, kPanel, me);
        Incoming second = incoming(1);
        second.states -= kPanel;  // its columns follow those of the first head
        if (second.intoRank != nullptr) second.intoRank -= kPanel;
        state.template addFull<kOfPanel, 2 * kOfPanel>(second, task.dv, item.keys, 2 * kPanel, me);
      }
    }
    SEQPAR_DEVICE bool storesFinal() const {
      return item.after == 0 && item.reachesEnd && task.to.finalState != nullptr;
    }
    SEQPAR_DEVICE void storeFull(const StateOf& state, const Half& me) const {
      const int64_t head = int64_t{item.sequence} * task.heads + item.head, size = int64_t{task.dk} * task.dv;
      float* to = (reverse ? task.dInitial : task.to.finalState) + head * size + item.stateOffset(task);
      if constexpr (kHeads == 1) {
        state.storeFull(to, task.dv, item.keys, item.values, me);
      } else {
        state.template storeFull<0, kOfPanel>(to, task.dv, item.keys, kPanel, me);
        state.template storeFull<kOfPanel, 2 * kOfPanel>(to + size - kPanel, task.dv, item.keys, 2 * kPanel, me);
      }
    }
  };

  /// Calls act(walk) for the CTA's items.
  template <class Act>
  SEQPAR_DEVICE static void each(const ChunkStatesTask& task, Memory& memory, const Act& act) {
    const int directions = task.to.directions, firstDirection = task.to.firstDirection, every = task.to.every;
    int chunks = 0, images = 0;
    for (int64_t index = ptx::block(); index < directions * itemsOf(task); index += ptx::blocks()) {
      const Item<T>& item = itemAt<T>(memory.item, task, index / directions, ptx::thread());
      const bool reverse = index % directions + firstDirection != 0;
      act(Walk{task, item, memory, reverse, item.chunks, chunks, images});
      chunks += item.chunks;
      images += (item.chunks + every - 1) / every;
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
