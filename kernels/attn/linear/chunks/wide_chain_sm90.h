// Outputs of a head with keys of 129 to 256 channels in one chain over all tokens on sm_90a, as head_chain_sm90.h.
//
// Work      a CTA of 512 threads, one per SM, takes items (sequence, head, 64 columns of v) as head_chain_sm90.h
// Roles     warpgroup 0: one warp computes factors of tokens, one issues TMA loads, one stores outputs, one saves
//           the initial state and copies images to device memory; 1: the state; 2, 3: outputs, of every second chunk
//           each
// Tiles     64 tokens; S^T 64 x 256 fp32 in registers, and S^T (kKeeps: S) rounded, an image, in shared memory;
//           queries of a chunk in registers
// Smem      queries (32 KiB), three stages of keys (32 KiB) and values (8 KiB); two images (32 KiB); outputs (8 KiB)
// Barriers  mbarriers of a stage, and of queries: full, empty; of an image: stored, read; of outputs: full, read
// Overlap   as head_chain_sm90.h: the chain is only the state's product and its decay. No overlap with other kernels
#pragma once

#include "kernels/attn/linear/chunks/head_chain_factors_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_items_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_outputs_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_state_sm90.h"
#include "kernels/attn/linear/chunks/wide_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// kGated, kKeeps: as in HeadChainKernel.
template <class T, bool kGated, bool kKeeps = false>
struct WideChainKernel {
  using Arguments = HeadChainTask;
  using Memory = WideChainMemory<T, kKeeps>;
  using Factors = HeadChainFactors<Memory, kGated>;
  static constexpr bool kReaderFences = kGated;
  static constexpr int kThreads = 4 * warpgroup::kThreads;
  static constexpr int kProducerRegisters = 56, kStateRegisters = 200, kOutputRegisters = 128;
  static_assert(warpgroup::kThreads * (kProducerRegisters + kStateRegisters + 2 * kOutputRegisters) <=
                warpgroup::kSmRegisters);
  static_assert(sizeof(Memory) <= ptx::kSharedBytesSm90 && Factors::kWarps == 1);

  SEQPAR_DEVICE static void run(const HeadChainTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32), group = ptx::uniform(warp / 4);
    if (thread == 0) initialize(memory);
    ptx::griddepcontrolWait();
    ptx::syncthreads();
    if (group == 0) {
      warpgroup::setmaxnregDec<kProducerRegisters>();
      produce(task, memory, warp, thread % 32);
    } else if (group == 1) {
      warpgroup::setmaxnregInc<kStateRegisters>();
      HeadChainState<T, Memory, kReaderFences> state(task, memory);
      eachChain<1>(task, [&](const ChainItem& item, int first) { state.run(item, first); });
    } else {
      warpgroup::setmaxnregInc<kOutputRegisters>();
      const HeadChainOutputs<T, Memory, kReaderFences> outputs(task, memory);
      eachChain<1>(task, [&](const ChainItem& item, int first) { outputs.run(item, first); });
    }
  }

 private:
  SEQPAR_DEVICE static void initialize(Memory& memory) {
    for (int stage = 0; stage < Memory::kStages; ++stage) {
      ptx::mbarrierInit(memory.full(stage), 1 + 1);
      ptx::mbarrierInit(memory.empty(stage), 4 + 4);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrierInit(memory.stored(i), warpgroup::kThreads);
      ptx::mbarrierInit(memory.read(i), kKeeps ? 4 + 1 : 4);
      ptx::mbarrierInit(memory.queriesFull(i), 1);
      ptx::mbarrierInit(memory.queriesEmpty(i), 4);
      ptx::mbarrierInit(memory.outputsRead(i), 1);
    }
    ptx::mbarrierInit(memory.outputsFull(), warpgroup::kThreads);
    ptx::fenceMbarrierInit();
  }
  SEQPAR_DEVICE static void produce(const HeadChainTask& task, Memory& memory, int warp, int lane) {
    if (warp == 0) {
      const Factors factors(task, memory, 0, lane);
      eachChain<1>(task, [&](const ChainItem& item, int first) { factors.run(item, first); });
    } else if (warp == 1 && lane == 0) {
      eachChain<1>(task, [&](const ChainItem& item, int first) { load(task, memory, item, first); });
    } else if (warp == 2 && lane == 0) {
      eachChain<1>(task, [&](const ChainItem& item, int first) { store(task, memory, item, first); });
      ptx::cpAsyncBulkWaitGroup();
    } else if (warp == 3) {
      keepChains<T, 1, kReaderFences, kKeeps>(task, memory, lane);
    }
  }
  /// One thread.
  SEQPAR_DEVICE static void load(const HeadChainTask& task, Memory& memory, const ChainItem& item, int first) {
    const int qkHead = item.head / task.group;
    for (int step = 0; step < item.chunks; ++step) {
      const int number = first + step, token = (item.chunk + step) * kChunk;
      const uint32_t full = memory.full(number), queriesFull = memory.queriesFull(number);
      auto& tiles = memory.of(number);
      const auto loadChannels = [&](T* to, const CUtensorMap& map, uint32_t barrier) {
        SEQPAR_UNROLL
        for (int panel = 0; panel < Memory::kKeyPanels; ++panel) {
          ptx::tmaLoad(ptx::sharedAddress(to + panel * kTilePanel), map, barrier, panel * kPanel, qkHead, token,
                       item.sequence);
        }
      };
      memory.awaitEmpty(number);
      ptx::mbarrierArriveExpectTx(full, int{sizeof(tiles)});
      loadChannels(tiles.keys, task.keys, full);
      ptx::tmaLoad(ptx::sharedAddress(tiles.values), task.values, full, item.column, item.head, token, item.sequence);
      memory.awaitQueriesEmpty(number);
      ptx::mbarrierArriveExpectTx(queriesFull, int{sizeof(memory.chunkQueries)});
      loadChannels(memory.chunkQueries, task.queries, queriesFull);
    }
  }
  /// One thread.
  SEQPAR_DEVICE static void store(const HeadChainTask& task, Memory& memory, const ChainItem& item, int first) {
    for (int step = 0; step < item.chunks; ++step) {
      const int number = first + step, token = (item.chunk + step) * kChunk;
      ptx::mbarrierWaitParity(memory.outputsFull(), number & 1);
      ptx::tmaStore(task.outputs, ptx::sharedAddress(memory.out), item.column, item.head, token, item.sequence);
      ptx::cpAsyncBulkCommitGroup();
      ptx::cpAsyncBulkWaitGroupRead<0>();
      ptx::mbarrierArrive(memory.outputsRead(number));
    }
  }
};

}  // namespace seqpar::attn::forward_sm90
