// States of every chunk on sm_90a, for kernels that process chunks in parallel, with token decays or none: the state
// before each chunk, from keys and values, and the gradient of the state after each chunk, from queries and dOut.
//
// Work      a CTA of 512 threads, one per SM, takes items (sequence, head or pair of heads, 128 columns of v, segment,
//           128 channels of k, direction) in steps of the grid. Single: items of half as many columns, for more CTAs
// Roles     warpgroups 0, 1: consumers, wgmma, 64 rows of the state each; 2: two warps scale the values of a chunk by
//           their decays, two those of the next one; 3: two warps compute factors of tokens, one issues TMA loads, one
//           copies images of states to device memory
// Tiles     64 tokens x 128; the state 128 x 128 fp32 in registers of the consumers. Pair: a panel of values, and of
//           the state, is a head; or, of heads of 80 columns, two panels and 80 columns, images transposed. Pair with
//           keys of up to 64: tiles and states of 64 channels, a consumer warpgroup has a head. Single: one head of a
//           pair, or a panel of 64 columns
// Smem      five stages of keys and values (16 KiB each), two images of states (32 KiB); heads of 80 columns: three
//           stages with 32 KiB of values, images of 40 KiB; keys of up to 64: six stages with 8 KiB of keys, 16 KiB.
//           Single: five or six stages, half of the values and images
// Barriers  mbarriers of a stage: full (tiles and factors), prepared, empty; of an image: stored, copied.
//           __syncthreads(): items
// Overlap   later chunks are loaded and scaled, and an image is stored, while a chunk is multiplied. Loads of gates are
//           in warps without fence.proxy.async, which would wait for them. The next kernel may start while this one
//           runs; it waits before it reads states
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/backward/chunk_factors_sm90.h"
#include "kernels/attn/linear/backward/chunk_rows_sm90.h"
#include "kernels/attn/linear/backward/chunk_states.h"
#include "kernels/attn/linear/backward/loads_sm90.h"

namespace seqpar::attn::backward::sm90 {

struct ChunkStatesTask : MappedTask {
  ChunkStates to;
  /// The thread that copies an image fences, instead of the threads that store it, which would wait for their products.
  bool copierFences = false;
};

template <class T, class Shape, bool kSingle = false>
struct ChunkStatesMemory {
  static constexpr int kStages = kSingle         ? (Shape::kWide ? 5 : 6)
                                 : Shape::kWide  ? 3
                                 : Shape::kShort ? 6
                                                 : 5,
                       kImages = 2, kParts = kSingle ? 1 : kPair;
  static constexpr int kTileOfKeys = Shape::kKeyPanels * kTilePanel,
                       kTileOfValues = kParts * Shape::kPanels * kTilePanel;
  T tiles[kStages][kTileOfKeys + kTileOfValues];
  T images[kImages][kParts * Shape::kElements];
  alignas(16) float factors[kStages][kPair][kChunk];  ///< of values, per head
  float totals[kStages][kPair];                       ///< the decay of a chunk, per head
  alignas(8) uint64_t barriers[kStages][3], imageBarriers[kImages][2];
  alignas(16) char item[kItemBytes];

  // Argument: running number of a chunk or image over all items of the CTA.
  SEQPAR_DEVICE T* keys(int number) { return tiles[number % kStages]; }
  SEQPAR_DEVICE T* values(int number) { return tiles[number % kStages] + kTileOfKeys; }
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

/// kHeads: of an item. kGated: with input gates. Shape: of a pair. kSingle: an item is one head of that shape, or one
/// panel of a head with a multiple of 128 columns; Task::together is 1.
template <class T, int kHeads, bool kGated, class Shape = ImageShape<kPanel, kBlock>, bool kSingle = false>
struct ChunkStatesKernel {
  static constexpr bool kWide = Shape::kWide, kShort = Shape::kShort;
  static constexpr int kColumns = Shape::kColumns, kParts = kSingle ? 1 : kPair;
  static_assert(kSingle ? kHeads == 1 : kHeads == kPair || (!kWide && !kShort));
  using Arguments = ChunkStatesTask;
  using Memory = ChunkStatesMemory<T, Shape, kSingle>;
  using StateOf = State<T, Half, kShort ? kPair : 1, kShort ? kBlock : kParts * kColumns>;
  using ByToken = ChunkFactors<T, kHeads, kGated>;
  static constexpr int kConsumers = Half::kThreads, kScalers = warpgroup::kThreads,
                       kThreads = kConsumers + kScalers + warpgroup::kThreads;
  static constexpr int kMultiplying = kSingle && kShort ? warpgroup::kThreads : kConsumers;  ///< threads with a state
  static constexpr int kConsumerRegisters = 168, kScalerRegisters = 88;
  static_assert(sizeof(Memory) <= ptx::kSharedBytesSm90);
  static_assert(kConsumers * kConsumerRegisters + 2 * kScalers * kScalerRegisters <= warpgroup::kSmRegisters);

  /// Items of a head's 128 columns.
  SEQPAR_BOTH_INLINE static int partsOf(const Task& task) { return kSingle && !kWide && task.dv > kPanel ? 2 : 1; }
  SEQPAR_BOTH_INLINE static int64_t itemsIn(const ChunkStatesTask& task) {
    return task.to.directions * itemsOf(task) * partsOf(task);
  }

  SEQPAR_DEVICE static void run(const ChunkStatesTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32);
    if (thread == 0) {
      for (int stage = 0; stage < Memory::kStages; ++stage) {
        ptx::mbarrierInit(memory.full(stage), 1 + 1);
        ptx::mbarrierInit(memory.prepared(stage), kScalers / 2);
        ptx::mbarrierInit(memory.empty(stage), kMultiplying / 32);
      }
      for (int image = 0; image < Memory::kImages; ++image) {
        ptx::mbarrierInit(memory.stored(image), kMultiplying);
        ptx::mbarrierInit(memory.copied(image), 1);
      }
      ptx::fenceMbarrierInit();
    }
    ptx::griddepcontrolWait();
    ptx::griddepcontrolLaunchDependents();
    if (warp < kConsumers / 32) {
      warpgroup::setmaxnregInc<kConsumerRegisters>();
      each(task, memory, [&](const Walk& walk) {
        if (kMultiplying == kConsumers || warp < kMultiplying / 32) walk.multiply();
      });
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
    int part;                            ///< of the item's columns, below partsOf()
    int chunks, firstChunk, firstImage;  ///< running numbers

    SEQPAR_DEVICE int chunkOf(int step) const { return reverse ? chunks - 1 - step : step; }
    SEQPAR_DEVICE int64_t tokenOf(int64_t first, int step) const { return first + int64_t{chunkOf(step)} * kChunk; }

    /// One thread.
    SEQPAR_DEVICE void load() const {
      const CUtensorMap &keys = reverse ? task.queries : task.keys, &values = reverse ? task.outputs : task.values;
      const int sequence = item.sequence, channel = item.keyBlock * kBlock, qkHead = item.head / task.group,
                head = item.head, column = item.valueBlock * kBlock + part * kPanel;
      const int64_t firstToken = item.first;
      for (int step = 0; step < chunks; ++step) {
        const int number = firstChunk + step, token = static_cast<int>(tokenOf(firstToken, step));
        const uint32_t full = memory.full(number);
        memory.awaitEmpty(number);
        ptx::mbarrierArriveExpectTx(full, (Memory::kTileOfKeys + Memory::kTileOfValues) * int{sizeof(T)});
        SEQPAR_UNROLL
        for (int panel = 0; panel < 2; ++panel) {
          const int first = panel * kPanel, at = panel * kTilePanel;
          if (panel < Shape::kKeyPanels) {
            ptx::tmaLoad(ptx::sharedAddress(memory.keys(number) + at), keys, full, channel + first, qkHead, token,
                         sequence);
          }
          if (panel >= kParts) continue;
          T* ofHead = memory.values(number) + at * Shape::kPanels;
          ptx::tmaLoad(ptx::sharedAddress(ofHead), values, full, kHeads == 1 ? column + first : 0,
                       kHeads == 1 ? head : head + panel, token, sequence);
          if (kWide) {
            ptx::tmaLoad(ptx::sharedAddress(ofHead + kTilePanel), values, full, kPanel, head + panel, token, sequence);
          }
        }
      }
    }

    /// Scalers: two of the warps take turns with the others at chunks, so that the loads and fences of two chunks
    /// overlap. Each scales a panel of values, or of a head's two, half of the rows at a time.
    SEQPAR_DEVICE void scale() const {
      const int thread = ptx::thread() - kConsumers, lane = thread % 32, warp = ptx::uniform(thread / 32 % 4);
      const int64_t first = item.first, end = item.end;
      for (int step = warp / 2; step < chunks; step += 2) {
        const int number = firstChunk + step;
        const int64_t left = end - tokenOf(first, step);
        // A warp waits for every second phase of `full` if kStages is odd, so it first waits until the last one is
        // over.
        memory.awaitEmpty(number);
        ptx::mbarrierWaitParity(memory.full(number), Memory::parity(number));
        SEQPAR_UNROLL
        for (int half = 0; half < 2; ++half) scalePart(number, warp % 2 + 2 * half, left, lane);
        warpgroup::fenceProxyAsync();
        ptx::mbarrierArrive(memory.prepared(number));
      }
    }
    /// A panel of values, or of a head's two, and half of the rows; 64 columns of one head: a quarter of the rows.
    SEQPAR_DEVICE void scalePart(int number, int part, int64_t left, int lane) const {
      const int panel = part % 2, row = part / 2 * 32 + lane / 8 * 8, at = panel * kTilePanel + row * kPanel;
      const float* ofHead = memory.factors[number % Memory::kStages][kHeads == 1 ? 0 : panel];
      T* const values = memory.values(number);
      if constexpr (kSingle) {
        constexpr int kRows = 4;  // of a lane
        ScaledRows<T>::template scale<kRows>(values, ofHead, part * 16 + lane / 8 * kRows, lane);
        if (kWide) ScaledRows<T>::scaleUnit(values + kTilePanel, ofHead, part * 16 + lane % 16, lane / 16);
      } else if constexpr (kWide) {
        ScaledRows<T>::template scale<8>(values + 2 * panel * kTilePanel, ofHead, row, lane);
        SEQPAR_UNROLL
        for (int unit = 0; unit < (kColumns - kPanel) / 8; ++unit) {
          ScaledRows<T>::scaleUnit(values + (2 * panel + 1) * kTilePanel, ofHead, part / 2 * 32 + lane, unit);
        }
      } else {
        ScaledRows<T>::template scale<8>(values + panel * kTilePanel, ofHead, row, lane);
      }
      if (left < kChunk && panel < Shape::kKeyPanels)
        ScaledRows<T>::clear(memory.keys(number) + at, static_cast<int>(left) - row, lane);
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
        decay(state, memory.totals[number % Memory::kStages], me);
        warpgroup::arrive();
        if constexpr (kWide) {
          addWide(state, memory.keys(number), memory.values(number), me);
        } else if constexpr (kShort) {
          const T* values = memory.values(number) + me.group * kTilePanel;
          warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, kChunk / 16>(
              state.x, Operand{memory.keys(number)}, kChunk, Operand{values, kTilePanelBytes}, kChunk, true);
        } else {
          state.add(memory.keys(number), memory.values(number), me);
        }
        warpgroup::commit();
        if (keeps) {
          if (image >= Memory::kImages) ptx::mbarrierWaitParity(memory.copied(image), Memory::imageParity(image) ^ 1);
          if constexpr (kWide) {
            storeWide(memory.image(image), words, me);
          } else {
            StateOf::store(memory.image(image), words, me);
          }
          if (!task.copierFences) warpgroup::fenceProxyAsync();
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
                                    kHeads == 1 ? item.valueBlock * 2 + (kSingle ? part : panel) : 0, number);
      }
      const bool both = !kSingle && (kHeads > 1 || item.values > kPanel);
      const int ofFirst = chunksOfFirst(), every = task.to.every, firstGroup = reverse ? (chunks - 1) / every : 0;
      int image = firstImage;
      for (int step = 0; step < chunks; step += step == 0 ? ofFirst : every) {
        const int before = image - firstImage, group = firstGroup + (reverse ? -before : before);
        constexpr int kElements = Shape::kElements, kBytes = kElements * int{sizeof(T)};
        const int64_t offset = group * task.to.groupStride;
        ptx::mbarrierWaitParity(memory.stored(image), Memory::imageParity(image));
        if (task.copierFences) warpgroup::fenceProxyAsync();
        ptx::cpAsyncBulkStore(to[0] + offset, memory.image(image), kBytes);
        if (both) ptx::cpAsyncBulkStore(to[1] + offset, memory.image(image) + kElements, kBytes);
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
    /// Starts x += keys^T values of two heads, or of one.
    SEQPAR_DEVICE static void addWide(StateOf& state, const T* keys, const T* values, const Half& me) {
      SEQPAR_UNROLL
      for (int head = 0; head < kParts; ++head) {
        warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, kChunk / 16>(
            reinterpret_cast<float(&)[kColumns / 8][4]>(state.x[head * (kColumns / 8)]),
            Operand{keys + me.group * kTilePanel}, kChunk, Operand{values + head * 2 * kTilePanel, kTilePanelBytes},
            kChunk, true);
      }
    }
    /// Stores the states of the heads, transposed (ChunkStates).
    SEQPAR_DEVICE static void storeWide(T* image, const typename StateOf::Words& words, const Half& me) {
      const ptx::MatrixRowsAcross own{me.lane};
      const int unit = me.group * 8 + me.warpIndex * 2 + own.half();
      SEQPAR_UNROLL
      for (int i = 0; i < kParts * kColumns / 16; ++i) {  // 16 columns
        constexpr int kOfHead = kColumns / 16;
        T* row = unitOf<kColumns>(image + i / kOfHead * Shape::kElements, own.row(i % kOfHead * 16), unit);
        ptx::stmatrixX4Trans(ptx::sharedAddress(row), words[i]);
      }
    }
    static constexpr int kOfPanel = StateOf::kTiles8 / 2;  ///< tiles of half of the columns

    SEQPAR_DEVICE static void decay(StateOf& state, const float (&totals)[kPair], const Half& me) {
      if constexpr (kShort) {
        const float total = totals[me.group];
        return total != 0 ? state.scale(total, total) : state.decay(total, total);
      }
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
      Incoming from = reverse ? Incoming::after(task, item, which) : Incoming::before(task, item, which);
      from.states += part * kPanel;
      if (from.intoRank != nullptr) from.intoRank += part * kPanel;
      return from;
    }
    SEQPAR_DEVICE void loadIncoming(StateOf& state, const Half& me) const {
      state.clear();
      if constexpr (kSingle) {
        state.addFull(incoming(0), task.dv, item.keys, kColumns, me);
      } else if constexpr (kHeads == 1) {
        state.addFull(incoming(0), task.dv, item.keys, item.values, me);
      } else if constexpr (kShort) {
        state.addFull(incoming(me.group), task.dv, item.keys, kPanel, me);
      } else {
        state.template addFull<0, kOfPanel>(incoming(0), task.dv, item.keys, kColumns, me);
        Incoming second = incoming(1);
        second.states -= kColumns;  // its columns follow those of the first head
        if (second.intoRank != nullptr) second.intoRank -= kColumns;
        state.template addFull<kOfPanel, 2 * kOfPanel>(second, task.dv, item.keys, 2 * kColumns, me);
      }
    }
    SEQPAR_DEVICE bool storesFinal() const {
      return item.after == 0 && item.reachesEnd && task.to.finalState != nullptr;
    }
    SEQPAR_DEVICE void storeFull(const StateOf& state, const Half& me) const {
      const int64_t head = int64_t{item.sequence} * task.heads + item.head, size = int64_t{task.dk} * task.dv;
      float* to = (reverse ? task.dInitial : task.to.finalState) + head * size + item.stateOffset(task) + part * kPanel;
      if constexpr (kSingle) {
        state.storeFull(to, task.dv, item.keys, kColumns, me);
      } else if constexpr (kHeads == 1) {
        state.storeFull(to, task.dv, item.keys, item.values, me);
      } else if constexpr (kShort) {
        state.storeFull(to + me.group * size, task.dv, item.keys, kPanel, me);
      } else {
        state.template storeFull<0, kOfPanel>(to, task.dv, item.keys, kColumns, me);
        state.template storeFull<kOfPanel, 2 * kOfPanel>(to + size - kColumns, task.dv, item.keys, 2 * kColumns, me);
      }
    }
  };

  /// Calls act(walk) for the CTA's items.
  template <class Act>
  SEQPAR_DEVICE static void each(const ChunkStatesTask& task, Memory& memory, const Act& act) {
    const int directions = task.to.directions, firstDirection = task.to.firstDirection, every = task.to.every;
    int chunks = 0, images = 0;
    const int parts = partsOf(task);
    for (int64_t index = ptx::block(); index < itemsIn(task); index += ptx::blocks()) {
      const int64_t number = index / directions;
      const Item<T>& item = itemAt<T>(memory.item, task, number / parts, ptx::thread());
      const bool reverse = index % directions + firstDirection != 0;
      act(Walk{task, item, memory, reverse, static_cast<int>(number % parts), item.chunks, chunks, images});
      chunks += item.chunks;
      images += (item.chunks + every - 1) / every;
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
