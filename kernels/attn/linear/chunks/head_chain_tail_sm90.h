// The contribution of a state to the outputs of later chunks of a head on sm_90a: O += decays * (Q S), and to the final
// state. head_chain_sm90.h and wide_chain_sm90.h compute second parts of heads from a zero state, and all chunks if the
// state before the tokens is not known yet. S is the state before the part.
//
// Work      a CTA of 128 threads has kRun chunks of 64 columns of a head, or 80; it ends where decays have forgotten S
// Tiles     64 tokens x 64, 128 or 256; S rounded, an image, in shared memory
// Smem      the image and queries (8 to 32 KiB each), outputs (8 KiB); 80 columns: 20, 16 and 16 KiB
// Barriers  an mbarrier: queries and outputs are loaded. __syncthreads()
// Overlap   several CTAs per SM. Starts early, and waits before all accesses. The image of a second part is loaded with
//           the first tiles; others are made of fp32 states, and that takes longer than a chunk
#pragma once

#include "kernels/attn/linear/chunks/head_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

template <class T, int kKeyPanels, int kPanels>
struct HeadChainTailMemory {
  T image[kKeyPanels * kPanel * kChainColumns<kPanels>];
  T queries[kKeyPanels * kTilePanel], out[kPanels * kTilePanel];
  float rows[kChunk];  ///< the scale times the decay since S
  float end;           ///< log2-decay from there to the chunk's end
  alignas(8) uint64_t full;
};

/// kKeyPanels: panels of 64 channels of keys, 1, 2 or 4. kPanels: as in HeadChainKernel.
template <class T, int kKeyPanels, int kPanels = 1>
struct HeadChainTailKernel {
  static_assert(kKeyPanels == 2 || kPanels == 1);
  using Arguments = HeadChainTask;
  using Memory = HeadChainTailMemory<T, kKeyPanels, kPanels>;
  static constexpr int kThreads = warpgroup::kThreads, kRun = 4;

  /// Runs of chunks of a head's only or first part, and of the second part.
  SEQPAR_BOTH_INLINE static int firstRuns(const HeadChainTask& task) {
    if (task.incoming == nullptr) return 0;
    return ((task.firstChunks > 0 ? task.firstChunks : task.chunks()) + kRun - 1) / kRun;
  }
  SEQPAR_BOTH_INLINE static int secondRuns(const HeadChainTask& task) {
    return task.firstChunks > 0 ? (task.chunks() - task.firstChunks + kRun - 1) / kRun : 0;
  }
  SEQPAR_BOTH_INLINE static int64_t itemsOf(const HeadChainTask& task) {
    return chainsOf<kPanels>(task) * (firstRuns(task) + secondRuns(task));
  }

  SEQPAR_DEVICE static void run(const HeadChainTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), firsts = firstRuns(task), runs = firsts + secondRuns(task),
              run = ptx::block() % runs;
    if (thread == 0) {
      ptx::mbarrierInit(ptx::sharedAddress(&memory.full), 1);
      ptx::fenceMbarrierInit();
    }
    ptx::griddepcontrolWait();
    const ChainItem item = ChainItem::at<kPanels>(task, ptx::block() / runs);
    const bool second = run >= firsts;
    const int start = second ? task.firstChunks : 0,
              last = second || task.firstChunks == 0 ? task.chunks() : task.firstChunks,
              first = start + (second ? run - firsts : run) * kRun, end = first + kRun < last ? first + kRun : last;
    if (second && first == start && task.to.finalState != nullptr) {
      addToFinal(task, item, decayOf(task, item, start, task.chunks()), thread);
    }
    float before = decayOf(task, item, start, first);
    if (backward::decayOf(before) == 0) return;
    const bool whole = kPanels == 1 && second && task.incoming == nullptr;
    if (thread == 0) {
      const uint32_t full = ptx::sharedAddress(&memory.full);
      constexpr int kImageBytes = int{sizeof(memory.image)};
      load(task, item, memory, first, whole ? kImageBytes : 0);
      if (whole) {
        ptx::cpAsyncBulkLoad(memory.image, task.template imageOf<kImageBytes / 2, T>(item), kImageBytes, full);
      }
    }
    if (!whole) {
      makeImage(task, item, second, memory.image, thread);
      warpgroup::fenceProxyAsync();
      ptx::syncthreads();
    }
    const Half me;
    for (int chunk = first; chunk < end; ++chunk) {
      if (thread == 0 && chunk > first) load(task, item, memory, chunk);
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
  static constexpr int kColumns = kChainColumns<kPanels>;

  /// Log2-decay from the start of chunk `from` to that of chunk `to`. Each warp.
  SEQPAR_DEVICE static float decayOf(const HeadChainTask& task, const ChainItem& item, int from, int to) {
    const float* totals = task.totalsOf(item);
    const int lane = ptx::thread() % 32;
    float sum = 0;
    for (int i = from + lane; i < to; i += 32) sum += totals[i];
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
  /// As HeadChainState::storeImage(): the state before the first or the second part.
  SEQPAR_DEVICE static void makeImage(const HeadChainTask& task, const ChainItem& item, bool second, T* image,
                                      int thread) {
    const bool both = second && task.incoming != nullptr;
    const float by = both ? backward::decayOf(decayOf(task, item, 0, task.firstChunks)) : 0;
    const int64_t at = item.stateOffset(task);
    const float *const state = (second ? task.middle : task.incoming) + at, *const added =
                                                                                by != 0 ? task.incoming + at : nullptr;
    for (int i = thread; i < kKeyPanels * kPanel / 8 * kColumns; i += kThreads) {
      const int column = i % kColumns, unit = i / kColumns;
      const int rows = item.column + column < task.dv ? task.dk - unit * 8 : 0;
      const int64_t offset = int64_t{unit} * 8 * task.dv + column;
      float numbers[8];
      loadColumn(numbers, state + offset, rows, task.dv);
      if (added != nullptr) {
        float more[8];
        loadColumn(more, added + offset, rows, task.dv);
        SEQPAR_UNROLL
        for (int j = 0; j < 8; ++j) numbers[j] += by * more[j];
      }
      uint32_t words[4];
      SEQPAR_UNROLL
      for (int j = 0; j < 4; ++j) words[j] = ptx::pack<T>(numbers[2 * j], numbers[2 * j + 1]);
      ptx::store(backward::sm90::unitOf<kColumns>(image, column, unit), words);
    }
  }
  /// Zeros from row `rows` on.
  SEQPAR_DEVICE static void loadColumn(float (&to)[8], const float* from, int rows, int64_t stride) {
    SEQPAR_UNROLL
    for (int j = 0; j < 8; ++j) to[j] = j < rows ? from[j * stride] : 0;
  }
  /// One thread. `more`: bytes that it loads with the tiles.
  SEQPAR_DEVICE static void load(const HeadChainTask& task, const ChainItem& item, Memory& memory, int chunk,
                                 int more = 0) {
    const uint32_t full = ptx::sharedAddress(&memory.full);
    const int token = chunk * kChunk;
    ptx::cpAsyncBulkWaitGroupRead<0>();
    ptx::mbarrierArriveExpectTx(full, int{sizeof(memory.queries) + sizeof(memory.out)} + more);
    SEQPAR_UNROLL
    for (int panel = 0; panel < kKeyPanels; ++panel) {
      ptx::tmaLoad(ptx::sharedAddress(memory.queries + panel * kTilePanel), task.queries, full, panel * kPanel,
                   item.head / task.group, token, item.sequence);
    }
    SEQPAR_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::tmaLoad(ptx::sharedAddress(memory.out + panel * kTilePanel), task.outputs, full,
                   item.column + panel * kPanel, item.head, token, item.sequence);
    }
  }
  /// One thread.
  SEQPAR_DEVICE static void store(const HeadChainTask& task, const ChainItem& item, Memory& memory, int chunk) {
    SEQPAR_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::tmaStore(task.outputs, ptx::sharedAddress(memory.out + panel * kTilePanel), item.column + panel * kPanel,
                    item.head, chunk * kChunk, item.sequence);
    }
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
    constexpr int kChannelSteps = kKeyPanels * kPanel / 16;
    const ptx::MatrixRows own = me.matrixRows();
    const int row = own.row(me.warpIndex * 16);
    uint32_t queries[kChannelSteps][4];
    SEQPAR_UNROLL
    for (int step = 0; step < kChannelSteps; ++step) {
      ptx::ldmatrixX4(queries[step], backward::sm90::unitOf<kChunk>(memory.queries, row, 2 * step + own.half()));
    }
    float out[kColumns / 8][4];
    warpgroup::arrive();
    SEQPAR_UNROLL
    for (int step = 0; step < kChannelSteps; ++step) {
      multiplyColumns<T, Terms::AlongRows>(out, queries[step], memory.image, kPanel * warpgroup::kRowBytes,
                                           kColumns * warpgroup::kRowBytes, kColumns, step, step > 0);
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(out);
    const float rows[2] = {memory.rows[me.row], memory.rows[me.row + 8]};
    SEQPAR_UNROLL
    for (int n = 0; n < kColumns / 8; n += 2) {
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
