// The later parts of heads with channel decays on sm_90a (channel_chain_sm90.h computes them from zero states): adds
// the contribution of the state before the part: O += Q (decays S), and computes the final state.
//
// Work      a CTA of 128 threads has kRun chunks of a part for 64 columns of a head; it ends where decays have
//           forgotten S
// Tiles     64 tokens x 128 kBlocks; S fp32 in registers; times its decays and rounded, an image, in shared memory
// Smem      the image and two stages of queries (16 kBlocks KiB each) and outputs (8 KiB)
// Barriers  an mbarrier of a stage: queries and outputs are loaded. __syncthreads()
// Overlap   two CTAs per SM. Starts early, and waits before all accesses
#pragma once

#include "kernels/attn/linear/chunks/channel_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

template <class T, int kBlocks>
struct ChannelChainTailMemory {
  T image[kBlocks * kTile], queries[2][kBlocks * kTile], out[2][kTilePanel];
  alignas(8) uint64_t barriers[2];

  SEQPAR_DEVICE uint32_t full(int step) const { return ptx::sharedAddress(&barriers[step % 2]); }
};

template <class T, int kBlocks>
class ChannelChainTailKernel {
 public:
  using Arguments = ChannelChainTask;
  using Memory = ChannelChainTailMemory<T, kBlocks>;
  using Record = ChannelRecord<T, kBlocks>;
  static constexpr int kThreads = warpgroup::kThreads, kRun = 8;

  SEQPAR_BOTH_INLINE static int runsOf(const ChannelChainTask& task) { return (task.partChunks + kRun - 1) / kRun; }
  SEQPAR_BOTH_INLINE static int64_t itemsOf(const ChannelChainTask& task) {
    return chainsOf<1>(task) * (task.parts - 1) * runsOf(task);
  }

  SEQPAR_DEVICE static void run(const ChannelChainTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int64_t chains = chainsOf<1>(task);
    const int runs = runsOf(task), run = ptx::block() % runs, rest = ptx::block() / runs;
    const Half me;
    const ChannelItem item = ChannelItem::at(task, rest % chains, 1 + static_cast<int>(rest / chains));
    const int first = item.chunk + run * kRun, last = item.chunk + item.chunks,
              end = first + kRun < last ? first + kRun : last;
    if (me.thread == 0) {
      for (int i = 0; i < 2; ++i) ptx::mbarrierInit(memory.full(i), 1);
      ptx::fenceMbarrierInit();
    }
    ptx::griddepcontrolWait();
    const bool addsFinal = run == 0 && item.part == task.parts - 1 && task.to.finalState != nullptr;
    if (first >= end) return;
    const bool forgotten = forgets(task.prefixOf(item, first, kChannels), me);
    if (forgotten && !addsFinal) return;
    if (me.thread == 0 && !forgotten) load(task, item, memory, first, 0);
    State x;
    loadBefore(x, task, item, me);
    if (!forgotten) addToOutputs(x, task, item, memory, me, first, end);
    if (!addsFinal) return;
    addUp(x, item.part, task, item, me);
    float* to = task.to.finalState + item.stateOffset(task);
    eachOfState<kBlocks>(x, task, item, me, [&](float number, int, int64_t at) { to[at] = number; });
  }

 private:
  static constexpr int kChannels = kBlocks * backward::kBlock, kTiles8 = backward::kBlock / 8;
  using State = ChannelState<kBlocks>;

  /// Whether all factors are 0. A barrier.
  SEQPAR_DEVICE static bool forgets(const float* decays, const Half& me) {
    float largest = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < kBlocks; ++i) largest = fmaxf(largest, decays[i * kThreads + me.thread]);
    return ptx::syncthreadsAnd(largest == 0);
  }
  /// x = x decays + the part's state.
  SEQPAR_DEVICE static void addUp(State& x, int part, const ChannelChainTask& task, const ChannelItem& item,
                                  const Half& me) {
    const float* decays = task.partDecaysOf(item, part, kChannels);
    eachTile<kBlocks>(x, task.partStateOf(item, part, kChannels), me, [&](float(&tile)[4], int n, const float* more) {
      float by[2], add[4];
      ptx::loadPair(decays + n * 8 + me.c * 2, by[0], by[1]);
      loadTile(add, more);
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) tile[e] = backward::times(by[e % 2], tile[e]) + add[e];
    });
  }
  SEQPAR_DEVICE static void loadTile(float (&tile)[4], const float* from) {
    ptx::loadPair(from, tile[0], tile[1]);
    ptx::loadPair(from + 2, tile[2], tile[3]);
  }
  /// The state before the part.
  SEQPAR_DEVICE static void loadBefore(State& x, const ChannelChainTask& task, const ChannelItem& item,
                                       const Half& me) {
    eachTile<kBlocks>(x, task.partStateOf(item, 0, kChannels), me,
                      [](float(&tile)[4], int, const float* from) { loadTile(tile, from); });
    SEQPAR_ROLLED
    for (int part = 1; part < item.part; ++part) addUp(x, part, task, item, me);
  }
  SEQPAR_DEVICE static void addToOutputs(const State& x, const ChannelChainTask& task, const ChannelItem& item,
                                         Memory& memory, const Half& me, int first, int end) {
    const bool finite = ptx::syncthreadsAnd(isFinite<kBlocks>(x));
    for (int chunk = first; chunk < end; ++chunk) {
      const int step = chunk - first;
      if (me.thread == 0 && chunk + 1 < end) load(task, item, memory, chunk + 1, step + 1);
      storeImage(x, memory.image, task.prefixOf(item, chunk, kChannels), me);
      warpgroup::fenceProxyAsync();
      ptx::syncthreads();
      ptx::mbarrierWaitParity(memory.full(step), step / 2 & 1);
      add(memory, step, finite, me);
      warpgroup::fenceProxyAsync();
      ptx::syncthreads();
      if (me.thread != 0) continue;
      ptx::tmaStore(task.outputs, ptx::sharedAddress(memory.out[step % 2]), item.column, item.head, chunk * kChunk,
                    item.sequence);
      ptx::cpAsyncBulkCommitGroup();
    }
    if (me.thread == 0) ptx::cpAsyncBulkWaitGroup();
  }
  SEQPAR_DEVICE static void storeImage(const State& x, T* image, const float* decays, const Half& me) {
    storeStateImage<kBlocks>(image, me, [&](uint32_t(&words)[4], int i) {
      float by[2][2];
      SEQPAR_UNROLL
      for (int n = 0; n < 2; ++n) ptx::loadPair(decays + (2 * i + n) * 8 + me.c * 2, by[n][0], by[n][1]);
      SEQPAR_UNROLL
      for (int word = 0; word < 4; ++word) {
        const float(&tile)[4] = x[2 * i / kTiles8][2 * i % kTiles8 + word / 2];
        const int first = word % 2 * 2;
        words[word] = ptx::pack<T>(backward::times(by[word / 2][0], tile[first]),
                                   backward::times(by[word / 2][1], tile[first + 1]));
      }
    });
  }
  /// One thread.
  SEQPAR_DEVICE static void load(const ChannelChainTask& task, const ChannelItem& item, Memory& memory, int chunk,
                                 int step) {
    const uint32_t full = memory.full(step);
    T *queries = memory.queries[step % 2], *out = memory.out[step % 2];
    ptx::cpAsyncBulkWaitGroupRead<0>();
    ptx::mbarrierArriveExpectTx(full, int{sizeof(memory.queries) + sizeof(memory.out)} / 2);
    ptx::cpAsyncBulkLoad(queries, task.recordOf<Record>(item, chunk).queries, int{sizeof(memory.queries)} / 2, full);
    ptx::tmaLoad(ptx::sharedAddress(out), task.outputs, full, item.column, item.head, chunk * kChunk, item.sequence);
  }
  SEQPAR_DEVICE static void add(Memory& memory, int step, bool finite, const Half& me) {
    const T* queries = memory.queries[step % 2];
    const ptx::MatrixRows own = me.matrixRows();
    const int row = own.row(me.warpIndex * 16);
    float out[kPanel / 8][4];
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kChannels / 16>(
        out, Operand{queries, kTilePanelBytes}, kChunk, Operand{memory.image, kTilePanelBytes}, kChunk, false);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
    if (!finite) {
      backward::clear(out);
      addKnown<T, kChannels>(out, queries, memory.image, me);
    }
    SEQPAR_UNROLL
    for (int n = 0; n < kPanel / 8; n += 2) {
      T* const at = backward::sm90::unitOf<kChunk>(memory.out[step % 2], row, n + own.half());
      uint32_t words[4];
      ptx::ldmatrixX4(words, at);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float(&tile)[4] = out[n + i / 2];
        const int first = i % 2 * 2;
        words[i] = ptx::pack<T>(ptx::lowOf<T>(words[i]) + tile[first], ptx::highOf<T>(words[i]) + tile[first + 1]);
      }
      ptx::stmatrixX4(at, words);
    }
  }
};

}  // namespace seqpar::attn::forward_sm90
