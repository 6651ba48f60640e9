// Outputs of a head in one chain over all tokens on sm_90a, for token decays or none and keys of up to 128 channels: no
// segments, no maps. O = P V + decays * (Q S) with P the scores within a chunk, then S = S decay + K^T V.
//
// Work      a CTA of 512 threads, one per SM, takes items (sequence, head, 64 columns of v, or 80) in steps of the
//           grid; with HeadChainTask::firstChunks, first parts of heads or second ones
// Roles     warpgroup 0: one warp issues TMA loads, one or two compute factors of tokens, one saves the initial state
//           and copies images to device memory; 1: the state; 2, 3: outputs, of every second chunk each
// Tiles     64 tokens; S^T 64 x 128, or S 128 x 80, fp32 in registers, and S^T rounded, an image, in shared memory;
//           kKeeps: S for 64 columns
// Smem      four stages of queries, keys (16 KiB each) and values (8 KiB); two images (16 KiB); outputs (2 x 8 KiB). 80
//           columns: three stages, with 16 KiB of values, images of 20 KiB and outputs of 2 x 16 KiB
// Barriers  mbarriers of a stage: full, empty; of an image: stored, read; kReaderFences: its readers fence, because the
//           state's warps would wait for their products. warpgroup::sync(): outputs
// Overlap   the chain is only the state's product and its decay: scores of later chunks, and outputs of earlier ones,
//           are computed meanwhile. No overlap with other kernels
#pragma once

#include <type_traits>

#include "kernels/attn/linear/chunks/head_chain_factors_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_items_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_outputs_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_rows_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_state_sm90.h"

namespace seqpar::attn::forward_sm90 {

/// kGated: with input gates. kPanels: 1, an item has 64 columns, or 2, 80 columns. kKeyPanels: panels of 64 channels of
/// keys, 1 or 2. kKeeps: images are copied to device memory.
template <class T, bool kGated, int kPanels, int kKeyPanels, bool kKeeps = false>
struct HeadChainKernel {
  using Arguments = HeadChainTask;
  using Memory = HeadChainMemory<T, kPanels, kKeyPanels, kKeeps>;
  using Factors = HeadChainFactors<Memory, kGated>;
  /// Measured: with input gates and longer keys it is faster, with others slower.
  static constexpr bool kReaderFences = kGated && kKeyPanels > 1;
  using State = std::conditional_t<kPanels == 1, HeadChainState<T, Memory, kReaderFences>,
                                   HeadChainRows<T, Memory, kReaderFences>>;
  static constexpr int kThreads = 4 * warpgroup::kThreads;
  static constexpr int kProducerRegisters = 56, kStateRegisters = kPanels == 1 ? 168 : 184,
                       kOutputRegisters = kPanels == 1 ? 144 : 136;
  static_assert(warpgroup::kThreads * (kProducerRegisters + kStateRegisters + 2 * kOutputRegisters) <=
                warpgroup::kSmRegisters);

  SEQPAR_DEVICE static void run(const HeadChainTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32), group = ptx::uniform(warp / 4);
    if (thread == 0) {
      for (int stage = 0; stage < Memory::kStages; ++stage) {
        ptx::mbarrierInit(memory.full(stage), 1 + 1);
        ptx::mbarrierInit(memory.empty(stage), 4 + 4);
      }
      for (int image = 0; image < Memory::kImages; ++image) {
        ptx::mbarrierInit(memory.stored(image), warpgroup::kThreads);
        ptx::mbarrierInit(memory.read(image), kKeeps ? 4 + 1 : 4);
      }
      ptx::fenceMbarrierInit();
    }
    ptx::griddepcontrolWait();
    ptx::syncthreads();
    if (group == 0) {
      warpgroup::setmaxnregDec<kProducerRegisters>();
      if (warp < Factors::kWarps) {
        const Factors factors(task, memory, warp, thread % 32);
        eachChain<kPanels>(task, [&](const ChainItem& item, int first) { factors.run(item, first); });
      } else if (thread == 32 * Factors::kWarps) {
        eachChain<kPanels>(task, [&](const ChainItem& item, int first) { load(task, memory, item, first); });
      } else if (warp == Factors::kWarps + 1) {
        keepChains<T, kPanels, kReaderFences, kKeeps>(task, memory, thread % 32);
      }
    } else if (group == 1) {
      warpgroup::setmaxnregInc<kStateRegisters>();
      State state(task, memory);
      eachChain<kPanels>(task, [&](const ChainItem& item, int first) { state.run(item, first); });
    } else {
      warpgroup::setmaxnregInc<kOutputRegisters>();
      const HeadChainOutputs<T, Memory, kReaderFences> outputs(task, memory);
      eachChain<kPanels>(task, [&](const ChainItem& item, int first) { outputs.run(item, first); });
      outputs.finish();
    }
  }

 private:
  /// One thread.
  SEQPAR_DEVICE static void load(const HeadChainTask& task, Memory& memory, const ChainItem& item, int first) {
    const int qkHead = item.head / task.group;
    for (int step = 0; step < item.chunks; ++step) {
      const int number = first + step, token = (item.chunk + step) * kChunk;
      const uint32_t full = memory.full(number);
      auto& tiles = memory.of(number);
      memory.awaitEmpty(number);
      ptx::mbarrierArriveExpectTx(full, int{sizeof(tiles)});
      SEQPAR_UNROLL
      for (int panel = 0; panel < kKeyPanels; ++panel) {
        const int channel = panel * kPanel, at = panel * kTilePanel;
        ptx::tmaLoad(ptx::sharedAddress(tiles.keys + at), task.keys, full, channel, qkHead, token, item.sequence);
        ptx::tmaLoad(ptx::sharedAddress(tiles.queries + at), task.queries, full, channel, qkHead, token, item.sequence);
      }
      SEQPAR_UNROLL
      for (int panel = 0; panel < kPanels; ++panel) {
        ptx::tmaLoad(ptx::sharedAddress(tiles.values + panel * kTilePanel), task.values, full,
                     item.column + panel * kPanel, item.head, token, item.sequence);
      }
    }
  }
};

}  // namespace seqpar::attn::forward_sm90
