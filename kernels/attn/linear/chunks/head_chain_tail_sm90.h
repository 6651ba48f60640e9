// The second parts of heads in two chains each on sm_90a (head_chain_sm90.h, wide_chain_sm90.h): those kernels compute
// them from a zero state; this one adds the contribution of the first part's last state: O += decays * (Q S), and the
// final state.
//
// Work      a CTA of 128 threads has kRun chunks of 64 columns of a head; it ends where decays have forgotten S
// Tiles     64 tokens x 128, or x 256; S rounded, an image, in shared memory
// Smem      the image and queries (16 KiB each, or 32 KiB), outputs (8 KiB)
// Barriers  an mbarrier: queries and outputs are loaded. __syncthreads()
// Overlap   several CTAs per SM. Starts early, and waits before all accesses
#pragma once

#include "kernels/attn/linear/chunks/head_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

template <class T, int kBlocks>
struct HeadChainTailMemory {
  T image[kBlocks * kTile], queries[kBlocks * kTile], out[kTilePanel];
  float rows[kChunk];  ///< the scale times the decay from the first part's end
  float end;           ///< log2-decay from there to the chunk's end
  alignas(8) uint64_t full;
};

/// kBlocks: of 128 channels of keys.
template <class T, int kBlocks = 1>
struct HeadChainTailKernel {
  using Arguments = HeadChainTask;
  using Memory = HeadChainTailMemory<T, kBlocks>;
  static constexpr int kThreads = warpgroup::kThreads, kRun = 4;

  SEQPAR_BOTH_INLINE static int runsOf(const HeadChainTask& task) {
    return (task.chunks() - task.firstChunks + kRun - 1) / kRun;
  }
  SEQPAR_BOTH_INLINE static int64_t itemsOf(const HeadChainTask& task) { return chainsOf<1>(task) * runsOf(task); }

  SEQPAR_DEVICE static void run(const HeadChainTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), runs = runsOf(task), run = ptx::block() % runs;
    if (thread == 0) {
      ptx::mbarrierInit(ptx::sharedAddress(&memory.full), 1);
      ptx::fenceMbarrierInit();
    }
    ptx::griddepcontrolWait();
    const ChainItem item = ChainItem::at<1>(task, ptx::block() / runs);
    const int first = task.firstChunks + run * kRun, end = first + kRun < task.chunks() ? first + kRun : task.chunks();
    if (run == 0 && task.to.finalState != nullptr) addToFinal(task, item, decayOf(task, item, task.chunks()), thread);
    float before = decayOf(task, item, first);
    if (backward::decayOf(before) == 0) return;
    makeImage(task, item, memory.image, thread);
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    const Half me;
    for (int chunk = first; chunk < end; ++chunk) {
      if (thread == 0) load(task, item, memory, chunk);
      if (thread < 32) makeRows(task, item, memory, chunk, before, thread);
      ptx::syncthreads();
      before = memory.end;
      ptx::mbarrierWaitParity(ptx::sharedAddress(&memory.full), (chunk - first) & 1);
      add(memory, me);
      warpgroup::fenceProxyAsync();
      ptx::syncthreads();
      if (thread == 0) store(task, item, memory, chunk);
      if (backward::decayOf(before) == 0) break;
    }
    if (thread == 0) ptx::cpAsyncBulkWaitGroup();
  }

 private:
  /// Log2-decay from the first part's end to the start of `chunk`. Each warp.
  SEQPAR_DEVICE static float decayOf(const HeadChainTask& task, const ChainItem& item, int chunk) {
    const float* totals = task.totalsOf(item);
    const int lane = ptx::thread() % 32;
    float sum = 0;
    for (int i = task.firstChunks + lane; i < chunk; i += 32) sum += totals[i];
    SEQPAR_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) sum += ptx::shflXor(sum, mask);
    return sum;
  }
  SEQPAR_DEVICE static void addToFinal(const HeadChainTask& task, const ChainItem& item, float log, int thread) {
    const float by = backward::decayOf(log);
    if (by == 0) return;
    const int64_t at = item.stateOffset(task);
    for (int i = thread; i < task.dk * kPanel; i += kThreads) {
      const int64_t offset = at + int64_t{i / kPanel} * task.dv + i % kPanel;
      task.to.finalState[offset] += by * task.middle[offset];
    }
  }
  /// As HeadChainState::storeImage().
  SEQPAR_DEVICE static void makeImage(const HeadChainTask& task, const ChainItem& item, T* image, int thread) {
    const int column = thread % kPanel;
    const float* from = task.middle + item.stateOffset(task) + column;
    for (int unit = thread / kPanel; unit < kBlocks * backward::kBlock / 8; unit += kThreads / kPanel) {
      float numbers[8];
      SEQPAR_UNROLL
      for (int i = 0; i < 8; ++i) {
        const int channel = unit * 8 + i;
        numbers[i] = channel < task.dk ? from[int64_t{channel} * task.dv] : 0;
      }
      uint32_t words[4];
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) words[i] = ptx::pack<T>(numbers[2 * i], numbers[2 * i + 1]);
      ptx::store(backward::sm90::unitOf<kChunk>(image, column, unit), words);
    }
  }
  /// One thread.
  SEQPAR_DEVICE static void load(const HeadChainTask& task, const ChainItem& item, Memory& memory, int chunk) {
    const uint32_t full = ptx::sharedAddress(&memory.full);
    const int token = chunk * kChunk;
    ptx::cpAsyncBulkWaitGroupRead<0>();
    ptx::mbarrierArriveExpectTx(full, int{sizeof(memory.queries) + sizeof(memory.out)});
    SEQPAR_UNROLL
    for (int panel = 0; panel < 2 * kBlocks; ++panel) {
      ptx::tmaLoad(ptx::sharedAddress(memory.queries + panel * kTilePanel), task.queries, full, panel * kPanel,
                   item.head / task.group, token, item.sequence);
    }
    ptx::tmaLoad(ptx::sharedAddress(memory.out), task.outputs, full, item.column, item.head, token, item.sequence);
  }
  /// One thread.
  SEQPAR_DEVICE static void store(const HeadChainTask& task, const ChainItem& item, Memory& memory, int chunk) {
    ptx::tmaStore(task.outputs, ptx::sharedAddress(memory.out), item.column, item.head, chunk * kChunk, item.sequence);
    ptx::cpAsyncBulkCommitGroup();
  }
  /// One warp. `before`: the log2-decay to the chunk's start.
  SEQPAR_DEVICE static void makeRows(const HeadChainTask& task, const ChainItem& item, Memory& memory, int chunk,
                                     float before, int lane) {
    const auto decays = backward::sm90::decaysOf<1>(task, item.sequence, item.head);
    float own[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int64_t token = int64_t{chunk} * kChunk + lane * 2 + i;
      uint32_t bits[1] = {0};
      if (token < task.tokens) decays.template load<false>(bits, token);
      own[i] = backward::bounded(decays.valueOf(bits[0]));
    }
    float sum = own[0] + own[1];
    SEQPAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = ptx::shfl(sum, lane - distance);
      if (lane >= distance) sum += other;
    }
    ptx::storePair(memory.rows + lane * 2, task.scale * backward::decayOf(before + sum - own[1]),
                   task.scale * backward::decayOf(before + sum));
    if (lane == 31) memory.end = before + sum;
  }
  SEQPAR_DEVICE static void add(Memory& memory, const Half& me) {
    constexpr int kChannelSteps = kBlocks * backward::kBlock / 16;
    const ptx::MatrixRows own = me.matrixRows();
    const int row = own.row(me.warpIndex * 16);
    uint32_t queries[kChannelSteps][4];
    SEQPAR_UNROLL
    for (int step = 0; step < kChannelSteps; ++step) {
      ptx::ldmatrixX4(queries[step], backward::sm90::unitOf<kChunk>(memory.queries, row, 2 * step + own.half()));
    }
    float out[kPanel / 8][4];
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int step = 0; step < kChannelSteps; ++step) {
      warpgroup::multiplyStep<T, Terms::AlongRows>(out, queries[step], Operand{memory.image, kTilePanelBytes}, kPanel,
                                                   step, step > 0);
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
    const float rows[2] = {memory.rows[me.row], memory.rows[me.row + 8]};
    SEQPAR_UNROLL
    for (int n = 0; n < kPanel / 8; n += 2) {
      T* const at = backward::sm90::unitOf<kChunk>(memory.out, row, n + own.half());
      uint32_t words[4];
      ptx::ldmatrixX4(words, at);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        float(&tile)[4] = out[n + i / 2];
        const int first = i % 2 * 2;
        words[i] = ptx::pack<T>(ptx::lowOf<T>(words[i]) + backward::times(rows[i % 2], tile[first]),
                                ptx::highOf<T>(words[i]) + backward::times(rows[i % 2], tile[first + 1]));
      }
      ptx::stmatrixX4(at, words);
    }
  }
};

}  // namespace seqpar::attn::forward_sm90
