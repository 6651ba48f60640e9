// Operands of chunks with channel decays on sm_90a (channel_chunks_sm90.h).
//
// Work      a CTA of 256 threads has 64 tokens of a head; a thread has two channels of 32 tokens
// Tiles     64 tokens x 256 channels; scores 64 x 64 by one warpgroup
// Smem      queries and keys, and remainders of one of them (32 KiB each), sums of decays (2 KiB)
// Barriers  an mbarrier: queries and keys are loaded. __syncthreads()
// Overlap   two CTAs per SM
#pragma once

#include "kernels/arch/tma.h"
#include "kernels/attn/linear/backward/channel_chunks_sm90.h"
#include "kernels/attn/linear/backward/level_scores_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
class ChannelScaleKernel {
 public:
  using Record = ChunkRecord<T>;
  static constexpr int kThreads = 2 * warpgroup::kThreads, kChannels = Record::kChannels;
  static constexpr int kSlices = 2, kTokens = kChunk / kSlices;
  static_assert(kThreads == kSlices * kChannels / 2);
  struct Memory {
    static constexpr int kChannels = Record::kChannels, kSlices = 2;
    T queries[Record::kKeyBlocks * kTile], keys[Record::kKeyBlocks * kTile];
    T rests[Record::kKeyBlocks * kTile];           ///< of queries, then of keys
    alignas(16) float totals[kSlices][kChannels];  ///< log2-decays of the tokens of a slice
    alignas(8) uint64_t full;
  };

  SEQPAR_BOTH_INLINE static int64_t itemsOf(const ChannelTask& task) {
    return int64_t{task.batch} * task.heads * task.chunksOfSegment;
  }
  SEQPAR_DEVICE static void run(const ChannelTask& task) { ChannelScaleKernel(task).run(); }

 private:
  using Pair = float[2];

  /// Adjacent CTAs have adjacent heads, as the tensors.
  SEQPAR_DEVICE explicit ChannelScaleKernel(const ChannelTask& task)
      : task_(task), memory_(*reinterpret_cast<Memory*>(ptx::sharedMemory())) {
    const int index = ptx::block();
    head_ = index % task.heads;
    chunk_ = index / task.heads % task.chunksOfSegment;
    sequence_ = index / task.heads / task.chunksOfSegment;
    slice_ = me_.thread / (kChannels / 2);
    channel_ = me_.thread % (kChannels / 2) * 2;
    gates_ = static_cast<const char*>(task.gates.data) +
             (sequence_ * task.gates.batch + head_ * task.gates.head) * gateBytes();
  }
  SEQPAR_DEVICE void run() {
    if (task_.leavesStrong && !ptx::syncthreadsAnd(me_.thread > 0 || !task_.isStrong())) return;
    if (me_.thread == 0) {
      ptx::mbarrierInit(full(), 1);
      ptx::fenceMbarrierInit();
      load();
    }
    Pair sums[kTokens];
    addUp(sums);
    ptx::storePair(memory_.totals[slice_] + channel_, sums[kTokens - 1][0], sums[kTokens - 1][1]);
    ptx::syncthreads();
    Pair before, half;
    addUpSlices(before, half);
    const bool mild = ptx::syncthreadsAnd(fminf(half[0], half[1]) >= Record::kLeastTotal / 2);
    Record& record = task_.recordOf<Record>(sequence_, head_, chunk_);
    if (!mild) return task_.leavesStrong ? leave() : runStrong(task_);
    if (slice_ == 0) ptx::storePair(record.decays + channel_, ptx::ex2Approx(half[0]), ptx::ex2Approx(half[1]));
    ptx::mbarrierWaitParity(full(), 0);
    uint32_t rests[kTokens];  // of keys
    scale(record, {before[0] - half[0], before[1] - half[1]}, sums, rests);
    multiply(record, rests);
  }
  /// Says that a chunk is strong.
  SEQPAR_DEVICE void leave() const {
    if (me_.thread == 0) ptx::storeRelaxedGpu(task_.strong, 1);
    ptx::mbarrierWaitParity(full(), 0);
  }
  /// Stores the thread's operands and L, which is `start` + sums, and returns remainders of its keys.
  SEQPAR_DEVICE void scale(Record& record, const Pair& start, const Pair (&sums)[kTokens], uint32_t (&rests)[kTokens]) {
    constexpr int kSame = 8, kSets = kTokens / kSame;  // tokens with equal swizzles, their distance
    const int block = channel_ / kBlock;
    uint32_t* const logs = &record.logsAt(slice_ * kTokens, channel_);
    SEQPAR_UNROLL
    for (int first = 0; first < kSame; ++first) {
      const int at = offsetOf(first);
      T *const inQueries = memory_.queries + at, *const inKeys = memory_.keys + at, *const inRests = memory_.rests + at;
      T *const toQueries = record.queries + at, *const toKeys = record.keys + at,
               *const toRests = record.rests[block][0] + (at - block * kTile);
      uint32_t words[kSets];
      SEQPAR_UNROLL
      for (int i = 0; i < kSets; ++i) {
        const int t = first + i * kSame, offset = i * kSame * kPanel;
        uint32_t &query = wordAt(inQueries, offset), &key = wordAt(inKeys, offset);
        Pair q = {ptx::lowOf<T>(query), ptx::highOf<T>(query)}, k = {ptx::lowOf<T>(key), ptx::highOf<T>(key)};
        uint32_t steps[2];
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          steps[e] = Record::stepsOf(start[e] + sums[t][e]);
          const float log = Record::logOf(steps[e]);
          q[e] *= task_.scale * ptx::ex2Approx(log);
          k[e] *= ptx::ex2Approx(-log);
        }
        query = ptx::pack<T>(q[0], q[1]);
        key = ptx::pack<T>(k[0], k[1]);
        const uint32_t ofQuery = restOf<T>(q[0], q[1], query);
        rests[t] = restOf<T>(k[0], k[1], key);
        wordAt(inRests, offset) = ofQuery;
        wordAt(toQueries, offset) = query;
        wordAt(toKeys, offset) = key;
        wordAt(toRests, offset) = ofQuery;
        wordAt(toRests, kTile + offset) = rests[t];
        words[i] = steps[0] | steps[1] << 16;
      }
      SEQPAR_UNROLL
      for (int i = 0; i < kSets; i += 2) Record::storeLogs(logs, first + i * kSame, words[i], words[i + 1]);
    }
  }
  /// Log2-decays from the chunk's start to this thread's slice, and half of the chunk's.
  SEQPAR_DEVICE void addUpSlices(Pair& before, Pair& half) const {
    Pair first, second;
    ptx::loadPair(memory_.totals[0] + channel_, first[0], first[1]);
    ptx::loadPair(memory_.totals[1] + channel_, second[0], second[1]);
    SEQPAR_UNROLL
    for (int e = 0; e < 2; ++e) {
      before[e] = slice_ > 0 ? first[e] : 0.f;
      half[e] = (first[e] + second[e]) / 2;
    }
  }
  /// Operands of strong decays, from the chunk's start and to its end, and scores. With sums of its own: those of
  /// the caller would need registers until here.
  SEQPAR_DEVICE static void runStrong(const ChannelTask& task) { ChannelScaleKernel(task).computeStrong(); }
  SEQPAR_DEVICE void computeStrong() const {
    Pair sums[kTokens], before, half;
    addUp(sums);
    addUpSlices(before, half);
    const Pair end = {2 * half[0], 2 * half[1]};
    Record& record = task_.recordOf<Record>(sequence_, head_, chunk_);
    if (me_.thread == 0) ptx::storeRelaxedGpu(task_.strong, 1);
    if (slice_ == 0) ptx::storePair(record.decays + channel_, -decayOf(end[0]), -decayOf(end[1]));
    for (int i = me_.thread; i < int{sizeof(record.scores) / 16}; i += kThreads) {
      constexpr uint32_t kZeros[4] = {};
      ptx::store(record.scores[0] + i * 8, kZeros);
    }
    ptx::mbarrierWaitParity(full(), 0);
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const int at = offsetOf(t);
      const uint32_t query = wordAt(memory_.queries, at), key = wordAt(memory_.keys, at);
      Pair q = {ptx::lowOf<T>(query), ptx::highOf<T>(query)}, k = {ptx::lowOf<T>(key), ptx::highOf<T>(key)};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float log = before[e] + sums[t][e];
        q[e] = task_.scale * times(decayOf(log), q[e]);
        k[e] = times(decayOf(end[e] - log), k[e]);
      }
      wordAt(record.queries, at) = ptx::pack<T>(q[0], q[1]);
      wordAt(record.keys, at) = ptx::pack<T>(k[0], k[1]);
    }
    ptx::syncthreads();
    LevelScores<T, Memory, Record>(memory_, record, task_.scale, slice_, channel_).run(sums);
  }
  /// The scores, by one warpgroup.
  SEQPAR_DEVICE void multiply(Record& record, const uint32_t (&rests)[kTokens]) {
    float scores[kChunk / 8][4];
    const Operand queries{memory_.queries, kTilePanelBytes}, keys{memory_.keys, kTilePanelBytes},
        others{memory_.rests, kTilePanelBytes};
    const auto add = [&](const Operand& a, const Operand& b, bool adds) {
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kChannels / 16>(scores, a, kChunk, b, kChunk, adds);
    };
    const auto finish = [&] {
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(scores);
    };
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    if (me_.group == 0) {
      warpgroup::arrive();
      add(queries, keys, false);
      add(others, keys, true);
      finish();
    }
    ptx::syncthreads();
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) wordAt(memory_.rests, offsetOf(t)) = rests[t];
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    if (me_.group != 0) return;
    warpgroup::fenceOperand(scores);
    warpgroup::arrive();
    add(queries, others, true);
    finish();
    SEQPAR_UNROLL
    for (int n = 0; n < kChunk / 8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int query = me_.row + r * 8, key = n * 8 + me_.c * 2;
        const Pair pair = {key > query ? 0.f : scores[n][r * 2], key + 1 > query ? 0.f : scores[n][r * 2 + 1]};
        const uint32_t word = ptx::pack<T>(pair[0], pair[1]);
        *pairOf(record.scores[0], query, n, me_) = word;
        *pairOf(record.scores[1], query, n, me_) = restOf<T>(pair[0], pair[1], word);
      }
    }
  }
  /// Of the thread's channels of its token t, in a tile.
  SEQPAR_DEVICE int offsetOf(int t) const {
    const int row = slice_ * kTokens + t;
    return channel_ / kPanel * kTilePanel + row * kPanel + (channel_ % kPanel / 8 ^ t % 8) * 8 + channel_ % 8;
  }
  SEQPAR_DEVICE static uint32_t& wordAt(T* tile, int at) { return *reinterpret_cast<uint32_t*>(tile + at); }

  SEQPAR_DEVICE uint32_t full() const { return ptx::sharedAddress(&memory_.full); }
  SEQPAR_DEVICE int gateBytes() const { return task_.gateType == seqparBfloat16 ? 2 : 4; }
  /// One thread.
  SEQPAR_DEVICE void load() const {
    ptx::mbarrierArriveExpectTx(full(), int{sizeof(memory_.queries) + sizeof(memory_.keys)});
    SEQPAR_UNROLL
    for (int panel = 0; panel < kChannels / kPanel; ++panel) {
      const int at = panel * kTilePanel, token = chunk_ * kChunk;
      ptx::tmaLoad(ptx::sharedAddress(memory_.queries + at), task_.queries, full(), panel * kPanel, head_, token,
                   sequence_);
      ptx::tmaLoad(ptx::sharedAddress(memory_.keys + at), task_.keys, full(), panel * kPanel, head_, token, sequence_);
    }
  }
  /// Sums of the log2-decays of this thread's tokens.
  SEQPAR_DEVICE void addUp(Pair (&sums)[kTokens]) const {
    const int64_t token = int64_t{chunk_} * kChunk + slice_ * kTokens, left = task_.tokens - token;
    const int tokens = channel_ < task_.dk ? static_cast<int>(left < kTokens ? left : kTokens) : 0;
    const char* at = gates_ + (token * task_.gates.token + channel_) * gateBytes();
    const int64_t stride = task_.gates.token * gateBytes();
    if (task_.gateType == seqparBfloat16) {
      SEQPAR_UNROLL
      for (int t = 0; t < kTokens; ++t, at += stride) {
        const uint32_t both = t < tokens ? *reinterpret_cast<const uint32_t*>(at) : 0;
        sums[t][0] = ptx::lowOf<Bf16>(both);
        sums[t][1] = ptx::highOf<Bf16>(both);
      }
    } else {
      SEQPAR_UNROLL
      for (int t = 0; t < kTokens; ++t, at += stride) {
        sums[t][0] = sums[t][1] = 0;
        if (t < tokens) ptx::loadPair(reinterpret_cast<const float*>(at), sums[t][0], sums[t][1]);
      }
    }
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) sums[t][e] = bounded(sums[t][e]) + (t > 0 ? sums[t - 1][e] : 0.f);
    }
  }

  const ChannelTask& task_;
  Memory& memory_;
  Half me_;
  int head_, chunk_, sequence_;
  int slice_, channel_;  ///< of this thread; the first of its two channels
  const char* gates_;
};

}  // namespace seqpar::attn::backward::sm90
