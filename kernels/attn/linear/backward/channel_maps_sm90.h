// Maps of pieces of the chunks with channel decays on sm_90a (channel_chunks_sm90.h), in reverse, for a scan between
// ranks: E of the piece's first token from a zero E after its last one, and its log-decays. Pieces that decays of
// earlier chunks have forgotten have no map (kNoMap).
//
// Work      a CTA of 384 threads, one per SM, takes items (piece, sequence, head, 128 or 64 columns of v, 128
//           channels) in steps of the grid, first pieces first
// Roles     as channel_states_sm90.h, without copies; two other warps of warpgroup 2 add logarithms
// Smem      ChannelStatesMemory
// Overlap   items one after the other; a CTA with an item that is not needed starts the next one
#pragma once

#include "kernels/attn/linear/backward/channel_states_sm90.h"
#include "kernels/attn/linear/scan_maps.h"

namespace seqpar::attn::backward::sm90 {

template <class T, int kColumns>
class ChannelMapsKernel {
 public:
  using Memory = ChannelStatesMemory<T, kColumns>;
  using Record = ChunkRecord<T>;
  using StateOf = State<T, Half, 1, kColumns>;
  static constexpr int kThreads = Half::kThreads + warpgroup::kThreads;

  SEQPAR_BOTH_INLINE static int columnItems(const ChannelTask& task) { return (task.dv + kColumns - 1) / kColumns; }
  SEQPAR_BOTH_INLINE static int64_t itemsOf(const ChannelTask& task) {
    return int64_t{task.batch} * task.heads * columnItems(task) * task.keyBlocks * task.pieces;
  }

  SEQPAR_DEVICE static void run(const ChannelTask& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory());
    const int thread = ptx::thread(), warp = ptx::uniform(thread / 32);
    if (thread == 0) {
      for (int stage = 0; stage < Memory::kStages; ++stage) {
        ptx::mbarrierInit(memory.full(stage), 1);
        ptx::mbarrierInit(memory.empty(stage), Half::kThreads / 32);
      }
      ptx::fenceMbarrierInit();
    }
    ptx::griddepcontrolWait();
    ptx::syncthreads();
    if (warp < Half::kThreads / 32) {
      each(task, memory, [](const ChannelMapsKernel& item) { item.multiply(); });
    } else if (warp >= kThreads / 32 - 2) {
      each(task, memory, [](const ChannelMapsKernel& item) { item.addLogs(ptx::thread() - (kThreads - 64)); });
    } else {
      each(task, memory, [](const ChannelMapsKernel& item) {
        if (ptx::thread() == Half::kThreads) item.load();
      });
    }
  }

 private:
  static constexpr float kLeastLog = -1000;  ///< of a chunk: instead of -inf

  /// Calls act(item) for the CTA's items that are needed. All threads.
  template <class Act>
  SEQPAR_DEVICE static void each(const ChannelTask& task, Memory& memory, const Act& act) {
    int first = 0;
    for (int64_t index = ptx::block(); index < itemsOf(task); index += ptx::blocks()) {
      const ChannelMapsKernel item(task, memory, index, first);
      if (!item.isNeeded(ptx::thread())) {
        item.forget(ptx::thread());
        continue;
      }
      act(item);
      first += item.chunks_;
    }
  }
  SEQPAR_DEVICE ChannelMapsKernel(const ChannelTask& task, Memory& memory, int64_t index, int first)
      : task_(task), memory_(memory), first_(first) {
    keyBlock_ = static_cast<int>(index % task.keyBlocks);
    index /= task.keyBlocks;
    column_ = static_cast<int>(index % columnItems(task)) * kColumns;
    index /= columnItems(task);
    head_ = static_cast<int>(index % task.heads);
    index /= task.heads;
    sequence_ = static_cast<int>(index % task.batch);
    piece_ = static_cast<int>(index / task.batch);
    begin_ = piece_ * task.pieceChunks;
    const int left = task.chunksOfSegment - begin_;
    chunks_ = left < task.pieceChunks ? left : task.pieceChunks;
  }
  SEQPAR_DEVICE const Record& record(int chunk) const {
    return task_.template recordOf<Record>(sequence_, head_, chunk);
  }
  SEQPAR_DEVICE int chunkOf(int step) const { return begin_ + chunks_ - 1 - step; }
  SEQPAR_DEVICE int64_t map() const { return (int64_t{sequence_} * task_.heads + head_) * task_.pieces + piece_; }
  SEQPAR_DEVICE bool hasKey(int key) const { return keyBlock_ * kBlock + key < task_.dk; }
  SEQPAR_DEVICE float* logs() const { return task_.maps.transitions + map() * task_.dk + keyBlock_ * kBlock; }

  /// Whether decays of earlier chunks keep a channel. A barrier of all threads.
  SEQPAR_DEVICE bool isNeeded(int thread) const {
    constexpr int kTogether = 16, kRows = kThreads / kBlock;
    const int key = thread % kBlock;
    float kept = 1;
    bool needed = true;
    for (int start = 0; start < begin_ && needed; start += kTogether * kRows) {
      SEQPAR_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const int chunk = start + i * kRows + thread / kBlock;
        const float half = chunk < begin_ ? record(chunk).decays[keyBlock_ * kBlock + key] : 1;
        kept *= Record::isStrong(half) ? -half : half * half;
      }
      memory_.kept()[thread] = kept;
      ptx::syncthreads();
      float product = 1;
      SEQPAR_UNROLL
      for (int row = 0; row < kRows; ++row) product *= memory_.kept()[row * kBlock + key];
      needed = !ptx::syncthreadsAnd(product < kReadDecay || !hasKey(key));
    }
    return needed;
  }
  SEQPAR_DEVICE void forget(int thread) const {
    if (column_ == 0 && thread < kBlock && hasKey(thread)) logs()[thread] = kNoMap;
  }
  /// 64 threads.
  SEQPAR_DEVICE void addLogs(int thread) const {
    if (column_ != 0) return;
    SEQPAR_UNROLL
    for (int key = thread; key < kBlock; key += 64) {
      float sum = 0;
      for (int step = 0; step < chunks_; ++step) {
        const float decay = record(begin_ + step).decays[keyBlock_ * kBlock + key];
        sum += Record::isStrong(decay) ? fmaxf(logf(-decay), kLeastLog) : 2 * logf(decay);
      }
      if (hasKey(key)) logs()[key] = sum;
    }
  }
  /// One thread.
  SEQPAR_DEVICE void load() const {
    constexpr int kDecayBytes = kBlock * int{sizeof(float)}, kKeyBytes = kTile * int{sizeof(T)};
    for (int step = 0; step < chunks_; ++step) {
      const int number = first_ + step, chunk = chunkOf(step);
      const uint32_t full = memory_.awaitEmpty(number);
      ptx::mbarrierArriveExpectTx(full, kKeyBytes + Memory::kTileOfValues * int{sizeof(T)} + kDecayBytes);
      ptx::cpAsyncBulkLoad(memory_.keys(number), record(chunk).queries + keyBlock_ * kTile, kKeyBytes, full);
      ptx::cpAsyncBulkLoad(memory_.decays[number % Memory::kStages], record(chunk).decays + keyBlock_ * kBlock,
                           kDecayBytes, full);
      SEQPAR_UNROLL
      for (int panel = 0; panel < kColumns / kPanel; ++panel) {
        ptx::tmaLoad(ptx::sharedAddress(memory_.values(number) + panel * kTilePanel), task_.outputs, full,
                     column_ + panel * kPanel, head_, chunk * kChunk, sequence_);
      }
    }
  }
  SEQPAR_DEVICE void multiply() const {
    const Half me;
    const int row = StateOf::row(me);
    StateOf state;
    state.clear();
    float decay = 1, decay8 = 1;
    for (int step = 0; step < chunks_; ++step) {
      const int number = first_ + step;
      ptx::mbarrierWaitParity(memory_.full(number), Memory::parity(number));
      const float* of = memory_.decays[number % Memory::kStages] + row;
      const float own = of[0], own8 = of[8];
      const bool strong = Record::isStrong(own);
      const float half = strong ? 1.f : own, half8 = strong ? 1.f : own8;
      state.scale(decay * half, decay8 * half8);
      decay = half;
      decay8 = half8;
      if (strong) state.decay(-own, -own8);
      warpgroup::fenceOperand(state.x);
      warpgroup::arrive();
      state.add(memory_.keys(number), memory_.values(number), me);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(state.x);
      ptx::syncwarp();
      if (me.lane == 0) ptx::mbarrierArrive(memory_.empty(number));
    }
    state.scale(decay, decay8);
    const int keys = task_.dk - keyBlock_ * kBlock, values = task_.dv - column_;
    const int64_t at = (map() * task_.dk + keyBlock_ * kBlock) * task_.dv + column_;
    state.storeFull(task_.maps.states + at, task_.dv, keys, values, me);
  }

  const ChannelTask& task_;
  Memory& memory_;
  int first_;  ///< running number of the item's first chunk
  int sequence_, head_, keyBlock_, column_, piece_;
  int begin_, chunks_;
};

}  // namespace seqpar::attn::backward::sm90
