// Outputs of a head with channel decays in chains over its chunks on sm_90a, from the operands of
// channel_operands_sm90.h: O = P V + Q S, then S = decays S + K^T V. With those of the backward
// (backward/channel_chunks_sm90.h): S' = h S, O = A V + q' S', then S = h (S' + k'^T V).
//
// Work      a CTA of 512 threads, one per SM, takes items (part of a sequence's tokens, head, 64 columns of v)
// Roles     warpgroup 0: one thread issues loads, one stores outputs, one images for the backward, one warp saves the
//           initial state; 1: the state; 2, 3: outputs, of every second chunk each
// Tiles     64 tokens; S^T 64 x 128 kBlocks fp32 in registers, and rounded, an image, in shared memory
// Smem      two stages of queries and keys (16 kBlocks KiB each), three of values (8 KiB), two images (16 kBlocks
//           KiB), outputs (8 KiB)
// Barriers  mbarriers: queries, keys and values full, empty; of an image: stored, read; of outputs: full, read
// Overlap   the chain is only the state's product and its decays. Starts early, and waits before all accesses
#pragma once

#include "kernels/attn/linear/chunks/channel_chain_state_sm90.h"

namespace seqpar::attn::forward_sm90 {

template <class T, int kBlocks, class OfRecord = ChannelRecord<T, kBlocks>>
struct ChannelChainKernel {
  using Arguments = ChannelChainTask;
  using Memory = ChannelChainMemory<T, kBlocks, OfRecord>;
  using Record = typename Memory::Record;
  static constexpr int kThreads = 4 * warpgroup::kThreads, kChannels = Memory::kChannels;
  static constexpr int kProducerRegisters = 56, kStateRegisters = 200, kOutputRegisters = 128;
  static_assert(warpgroup::kThreads * (kProducerRegisters + kStateRegisters + 2 * kOutputRegisters) <=
                warpgroup::kSmRegisters);
  static_assert(sizeof(Memory) <= ptx::kSharedBytesSm90);

  SEQPAR_DEVICE static void run(const ChannelChainTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32), group = ptx::uniform(warp / 4);
    if (thread == 0) initialize(memory, task.to.states != nullptr);
    ptx::griddepcontrolWait();
    if (!task.isNeeded<Record>()) return;
    ptx::syncthreads();
    if (group == 0) {
      warpgroup::setmaxnregDec<kProducerRegisters>();
      produce(task, memory, warp, thread % 32);
    } else if (group == 1) {
      warpgroup::setmaxnregInc<kStateRegisters>();
      ChannelChainState<T, Memory> state(task, memory);
      eachChannelItem(task, [&](const ChannelItem& item, int first) { state.run(item, first); });
    } else {
      warpgroup::setmaxnregInc<kOutputRegisters>();
      const Half me;
      eachChannelItem(task, [&](const ChannelItem& item, int first) { computeOutputs(task, memory, me, item, first); });
    }
  }

 private:
  using Columns = float[kPanel / 8][4];
  using Words = uint32_t[kChunk / 16][4];

  SEQPAR_DEVICE static void initialize(Memory& memory, bool keeps) {
    for (int i = 0; i < 3; ++i) {
      ptx::mbarrierInit(memory.valuesFull(i), 1);
      ptx::mbarrierInit(memory.valuesEmpty(i), 4 + 4);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrierInit(memory.queriesFull(i), 1);
      ptx::mbarrierInit(memory.queriesEmpty(i), 4);
      ptx::mbarrierInit(memory.keysFull(i), 1);
      ptx::mbarrierInit(memory.keysEmpty(i), 4);
      ptx::mbarrierInit(memory.stored(i), warpgroup::kThreads);
      ptx::mbarrierInit(memory.read(i), keeps ? 4 + 1 : 4);
      ptx::mbarrierInit(memory.outputsRead(i), 1);
    }
    ptx::mbarrierInit(memory.outputsFull(), warpgroup::kThreads);
    ptx::fenceMbarrierInit();
  }
  SEQPAR_DEVICE static void produce(const ChannelChainTask& task, Memory& memory, int warp, int lane) {
    if (warp == 0 && lane == 0) {
      eachChannelItem(task, [&](const ChannelItem& item, int first) { load(task, memory, item, first); });
    } else if (warp == 1 && lane == 0) {
      eachChannelItem(task, [&](const ChannelItem& item, int first) { store(task, memory, item, first); });
      ptx::cpAsyncBulkWaitGroup();
    } else if (warp == 2 && lane == 0 && Memory::kChannelRows && task.to.states != nullptr) {
      eachChannelItem(task,
                      [&](const ChannelItem& item, int first) { keepImages<T, false>(task, item, memory, first); });
      ptx::cpAsyncBulkWaitGroup();
    } else if (warp == 3 && task.saved != nullptr) {
      eachChannelItem(task, [&](const ChannelItem& item, int) {
        if (item.part == 0) saveInitial<kPanel>(task, item, lane);
      });
    }
  }
  /// One thread.
  SEQPAR_DEVICE static void load(const ChannelChainTask& task, Memory& memory, const ChannelItem& item, int first) {
    for (int step = 0; step < item.chunks; ++step) {
      const int number = first + step, chunk = item.chunk + step;
      const Record& record = task.recordOf<Record>(item, chunk);
      const uint32_t keys = memory.keysFull(number), values = memory.valuesFull(number),
                     queries = memory.queriesFull(number);
      memory.awaitKeysEmpty(number);
      ptx::mbarrierArriveExpectTx(keys, int{sizeof(record.keys) + sizeof(typename Memory::Decays)});
      ptx::cpAsyncBulkLoad(memory.keys(number), record.keys, int{sizeof(record.keys)}, keys);
      ptx::cpAsyncBulkLoad(&memory.decays(number), record.decays, int{sizeof(typename Memory::Decays)}, keys);
      memory.awaitValuesEmpty(number);
      ptx::mbarrierArriveExpectTx(values, int{sizeof(memory.out)});
      ptx::tmaLoad(ptx::sharedAddress(memory.values(number)), task.values, values, item.column, item.head,
                   chunk * kChunk, item.sequence);
      memory.awaitQueriesEmpty(number);
      ptx::mbarrierArriveExpectTx(queries, int{sizeof(record.queries)});
      ptx::cpAsyncBulkLoad(memory.queries(number), record.queries, int{sizeof(record.queries)}, queries);
    }
  }
  /// One thread.
  SEQPAR_DEVICE static void store(const ChannelChainTask& task, Memory& memory, const ChannelItem& item, int first) {
    for (int step = 0; step < item.chunks; ++step) {
      const int number = first + step, token = (item.chunk + step) * kChunk;
      ptx::mbarrierWaitParity(memory.outputsFull(), number & 1);
      ptx::tmaStore(task.outputs, ptx::sharedAddress(memory.out), item.column, item.head, token, item.sequence);
      ptx::cpAsyncBulkCommitGroup();
      ptx::cpAsyncBulkWaitGroupRead<0>();
      ptx::mbarrierArrive(memory.outputsRead(number));
    }
  }
  SEQPAR_DEVICE static void computeOutputs(const ChannelChainTask& task, Memory& memory, const Half& me,
                                           const ChannelItem& item, int first) {
    for (int number = first + ((first ^ me.group) & 1); number < first + item.chunks; number += 2) {
      Columns out;
      Words words;
      const Record& record = task.recordOf<Record>(item, item.chunk + number - first);
      SEQPAR_UNROLL
      for (int step = 0; step < kChunk / 16; ++step) loadScores(words[step], record, step, me);
      memory.awaitValues(number);
      multiplyScores(out, words, memory.values(number));
      memory.awaitQueries(number);
      memory.awaitStored(number);
      multiplyQueries(out, memory, number);
      warpgroup::wait<0>();
      warpgroup::fenceOperand(out);
      keepUntilRead(words);
      if (!Memory::kChannelRows && isLost(memory, number)) {
        multiplyScores(out, words, memory.values(number));
        warpgroup::wait<0>();
        warpgroup::fenceOperand(out);
        keepUntilRead(words);
        addKnown<T, kChannels>(out, memory.queries(number), memory.image(number), me);
      }
      ptx::syncwarp();
      if (me.lane == 0) {
        ptx::mbarrierArrive(memory.queriesEmpty(number));
        ptx::mbarrierArrive(memory.valuesEmpty(number));
        ptx::mbarrierArrive(memory.read(number));
      }
      write(out, memory, me, number);
    }
  }
  SEQPAR_DEVICE static bool isLost(const Memory& memory, int number) {
    const float(&lost)[4] = memory.lost[number % 2];
    return lost[0] + lost[1] + lost[2] + lost[3] != 0;
  }
  /// Starts out = scores V.
  SEQPAR_DEVICE static void multiplyScores(Columns& out, const Words& words, const T* values) {
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int step = 0; step < kChunk / 16; ++step) {
      warpgroup::multiplyStep<T, Terms::Rows>(out, words[step], Operand{values, kTilePanelBytes}, kChunk, step,
                                              step > 0);
    }
    warpgroup::commit();
  }
  /// Starts out += Q S.
  SEQPAR_DEVICE static void multiplyQueries(Columns& out, Memory& memory, int number) {
    warpgroup::arrive();
    constexpr Terms kOfStates = Memory::kChannelRows ? Terms::Rows : Terms::AlongRows;
    warpgroup::multiplyAll<T, Terms::AlongRows, kOfStates, kChannels / 16>(
        out, Operand{memory.queries(number), kTilePanelBytes}, kChunk, Operand{memory.image(number), kTilePanelBytes},
        kChunk, true);
    warpgroup::commit();
  }
  /// After the products that read them in registers: otherwise the compiler may assign later loads to these.
  SEQPAR_DEVICE static void keepUntilRead(Words& words) {
    SEQPAR_UNROLL
    for (auto& step : words) {
      SEQPAR_UNROLL
      for (uint32_t& word : step) word = static_cast<uint32_t>(ptx::opaque(static_cast<int>(word)));
    }
  }
  SEQPAR_DEVICE static void write(const Columns& out, Memory& memory, const Half& me, int number) {
    memory.awaitOutputsRead(number);
    const ptx::MatrixRows own = me.matrixRows();
    SEQPAR_UNROLL
    for (int n = 0; n < kPanel / 8; n += 2) {
      uint32_t words[4];
      backward::sm90::packTiles<T>(words, out, n);
      ptx::stmatrixX4(backward::sm90::unitOf<kChunk>(memory.out, own.row(me.warpIndex * 16), n + own.half()), words);
    }
    warpgroup::fenceProxyAsync();
    ptx::mbarrierArrive(memory.outputsFull());
  }
};

}  // namespace seqpar::attn::forward_sm90
