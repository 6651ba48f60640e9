// Operands of outputs with channel decays on sm_90a: of each chunk of a head, queries and keys times their decays, and
// scores (channel_chain_memory_sm90.h). Items of all blocks of columns of the head read them.
//
// Work      a CTA of 256 threads has 64 tokens of a head; a thread has two channels of 32 tokens (keys of one
//           block: 16)
// Tiles     64 tokens x 128 kBlocks channels; scores 64 x 64 by one warpgroup
// Smem      queries and keys (16 kBlocks KiB each), sums of decays (2 KiB)
// Barriers  an mbarrier: queries and keys are loaded. __syncthreads()
// Overlap   two CTAs per SM
//
// Scores are products of queries and keys times their decays from and to the chunk's middle. If one of these decays is
// below kLeast, the scores between blocks of 16 tokens are products of queries times their decays from the block's
// start and keys to the block's end, and those within blocks are computed in fp32, from running products of decays.
#pragma once

#include "kernels/attn/linear/backward/level_scores_sm90.h"
#include "kernels/attn/linear/chunks/channel_chain_memory_sm90.h"

namespace seqpar::attn::forward_sm90 {

template <class T, int kBlocks>
struct ChannelOperandsMemory {
  static constexpr int kChannels = kBlocks * backward::kBlock, kSlices = 8 / kBlocks / 2;
  T queries[kBlocks * kTile], keys[kBlocks * kTile];
  alignas(16) float totals[kSlices][kChannels];  ///< log2-decays of the tokens of a slice
  alignas(8) uint64_t full;
};

template <class T, int kBlocks>
class ChannelOperandsKernel {
 public:
  using Arguments = ChannelChainTask;
  using Memory = ChannelOperandsMemory<T, kBlocks>;
  using Record = ChannelRecord<T, kBlocks>;
  static constexpr int kThreads = 2 * warpgroup::kThreads;

  SEQPAR_BOTH_INLINE static int64_t itemsOf(const ChannelChainTask& task) {
    return int64_t{task.batch} * task.heads * task.chunks();
  }
  SEQPAR_DEVICE static void run(const ChannelChainTask& task) {
    if (task.isNeeded<Record>()) ChannelOperandsKernel(task).run();
  }

 private:
  static constexpr int kChannels = Memory::kChannels, kSlices = Memory::kSlices, kTokens = kChunk / kSlices;
  static constexpr float kLeast = -56;
  static_assert(kThreads == kSlices * kChannels / 2);
  using Pair = float[2];
  using Levels = backward::sm90::LevelScores<T, Memory, Record>;

  /// Adjacent CTAs have adjacent heads, as the tensors.
  SEQPAR_DEVICE explicit ChannelOperandsKernel(const ChannelChainTask& task)
      : task_(task), memory_(*reinterpret_cast<Memory*>(ptx::sharedMemory())) {
    const int index = ptx::block();
    item_.head = index % task.heads;
    item_.chunk = index / task.heads % task.chunks();
    item_.sequence = index / task.heads / task.chunks();
    item_.column = 0;
    slice_ = me_.thread / (kChannels / 2);
    channel_ = me_.thread % (kChannels / 2) * 2;
    gates_ = static_cast<const char*>(task.gates.data) +
             (item_.sequence * task.gates.batch + item_.head * task.gates.head) * gateBytes();
  }
  SEQPAR_DEVICE void run() {
    if (me_.thread == 0) {
      ptx::mbarrierInit(full(), 1);
      ptx::fenceMbarrierInit();
      load();
    }
    Pair sums[kTokens];
    addUp(sums);
    ptx::storePair(memory_.totals[slice_] + channel_, sums[kTokens - 1][0], sums[kTokens - 1][1]);
    ptx::syncthreads();
    Pair before, middle, end;
    addUpSlices(before, middle, end);
    const bool mine = fminf(fminf(middle[0], middle[1]), fminf(end[0] - middle[0], end[1] - middle[1])) >= kLeast;
    const bool mild = ptx::syncthreadsAnd(mine);
    Record& record = task_.recordOf<Record>(item_, item_.chunk);
    if (slice_ == 0) ptx::storePair(record.decays + channel_, backward::decayOf(end[0]), backward::decayOf(end[1]));
    if (me_.thread == 0) record.forgets = mild ? 0.f : 1.f;
    ptx::mbarrierWaitParity(full(), 0);
    if (!mild) return runStrong(task_);
    decayMild(record, sums, before, middle, end);
    warpgroup::fenceProxyAsync();
    ptx::syncthreads();
    if (me_.group == 0) multiply(record);
  }
  /// After the loads. With sums of its own: those of the caller would need registers until here.
  SEQPAR_DEVICE static void runStrong(const ChannelChainTask& task) { ChannelOperandsKernel(task).computeStrong(); }
  SEQPAR_DEVICE void computeStrong() const {
    Pair sums[kTokens], before, middle, end;
    addUp(sums);
    addUpSlices(before, middle, end);
    Record& record = task_.recordOf<Record>(item_, item_.chunk);
    const bool finite = ptx::syncthreadsAnd(decayStrong(record, sums, before, end));
    for (int i = me_.thread; i < kChunk / 16 * warpgroup::kThreads; i += kThreads) {
      constexpr uint32_t kZeros[4] = {};
      ptx::store(record.scores[i / warpgroup::kThreads][i % warpgroup::kThreads], kZeros);
    }
    ptx::syncthreads();
    if (finite) return Levels(memory_, record, task_.scale, slice_, channel_).run(sums);
    scoreBlocks(record);
    ptx::syncthreads();
    decayBlocks(sums);
    ptx::syncthreads();
    scoreBetween(record);
  }
  /// Log2-decays from the chunk's start to this thread's slice, to the chunk's middle and to its end.
  SEQPAR_DEVICE void addUpSlices(Pair& before, Pair& middle, Pair& end) const {
    before[0] = before[1] = middle[0] = middle[1] = end[0] = end[1] = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < kSlices; ++i) {
      Pair total;
      ptx::loadPair(memory_.totals[i] + channel_, total[0], total[1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (i < slice_) before[e] += total[e];
        if (i < kSlices / 2) middle[e] += total[e];
        end[e] += total[e];
      }
    }
  }

  SEQPAR_DEVICE uint32_t full() const { return ptx::sharedAddress(&memory_.full); }
  SEQPAR_DEVICE int gateBytes() const { return task_.gateType == seqparBfloat16 ? 2 : 4; }
  /// One thread.
  SEQPAR_DEVICE void load() const {
    const int head = item_.head / task_.group, token = item_.chunk * kChunk;
    ptx::mbarrierArriveExpectTx(full(), int{sizeof(memory_.queries) + sizeof(memory_.keys)});
    SEQPAR_UNROLL
    for (int panel = 0; panel < 2 * kBlocks; ++panel) {
      const int at = panel * kTilePanel;
      ptx::tmaLoad(ptx::sharedAddress(memory_.queries + at), task_.queries, full(), panel * kPanel, head, token,
                   item_.sequence);
      ptx::tmaLoad(ptx::sharedAddress(memory_.keys + at), task_.keys, full(), panel * kPanel, head, token,
                   item_.sequence);
    }
  }
  /// The log2-decays of two channels.
  SEQPAR_DEVICE void gatesAt(Pair& to, int inChunk, int channel) const {
    const int64_t token = int64_t{item_.chunk} * kChunk + inChunk;
    to[0] = to[1] = 0;
    if (token >= task_.tokens || channel >= task_.dk) return;
    const char* const at = gates_ + (token * task_.gates.token + channel) * gateBytes();
    if (task_.gateType == seqparBfloat16) {
      const uint32_t both = *reinterpret_cast<const uint32_t*>(at);
      to[0] = ptx::lowOf<Bf16>(both);
      to[1] = ptx::highOf<Bf16>(both);
    } else {
      ptx::loadPair(reinterpret_cast<const float*>(at), to[0], to[1]);
    }
  }
  /// Sums of the log2-decays of this thread's tokens.
  SEQPAR_DEVICE void addUp(Pair (&sums)[kTokens]) const {
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) gatesAt(sums[t], slice_ * kTokens + t, channel_);
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) sums[t][e] = backward::bounded(sums[t][e]) + (t > 0 ? sums[t - 1][e] : 0.f);
    }
  }
  /// Calls act(token of the thread, its queries and keys in shared memory, and in the record or other memory).
  template <class Other, class Act>
  SEQPAR_DEVICE void eachToken(Other& record, const Act& act) const {
    const int panel = channel_ / kPanel * kTilePanel, unit = channel_ % kPanel / 8;
    SEQPAR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const int row = slice_ * kTokens + t, at = panel + row * kPanel + (unit ^ t % 8) * 8 + channel_ % 8;
      const auto wordAt = [&](T* tile) { return reinterpret_cast<uint32_t*>(tile + at); };
      act(t, *wordAt(memory_.queries), *wordAt(memory_.keys), *wordAt(record.queries), *wordAt(record.keys));
    }
  }
  SEQPAR_DEVICE void decayMild(Record& record, const Pair (&sums)[kTokens], const Pair& before, const Pair& middle,
                               const Pair& end) const {
    Pair start, ofQueries, ofKeys;
    SEQPAR_UNROLL
    for (int e = 0; e < 2; ++e) {
      start[e] = before[e] - middle[e];
      ofQueries[e] = task_.scale * ptx::ex2Approx(middle[e]);
      ofKeys[e] = ptx::ex2Approx(end[e] - middle[e]);
    }
    eachToken(record, [&](int t, uint32_t& query, uint32_t& key, uint32_t& queryOut, uint32_t& keyOut) {
      Pair q = {ptx::lowOf<T>(query), ptx::highOf<T>(query)}, k = {ptx::lowOf<T>(key), ptx::highOf<T>(key)};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float log = start[e] + sums[t][e];
        q[e] *= ptx::ex2Approx(log);
        k[e] *= ptx::ex2Approx(-log);
      }
      query = ptx::pack<T>(q[0], q[1]);
      key = ptx::pack<T>(k[0], k[1]);
      queryOut = ptx::pack<T>(ofQueries[0] * q[0], ofQueries[1] * q[1]);
      keyOut = ptx::pack<T>(ofKeys[0] * k[0], ofKeys[1] * k[1]);
    });
  }
  /// Returns whether the thread's keys are finite.
  SEQPAR_DEVICE bool decayStrong(Record& record, const Pair (&sums)[kTokens], const Pair& before,
                                 const Pair& end) const {
    uint32_t zeros = 0;
    eachToken(record, [&](int t, uint32_t query, uint32_t key, uint32_t& queryOut, uint32_t& keyOut) {
      Pair q = {ptx::lowOf<T>(query), ptx::highOf<T>(query)}, k = {ptx::lowOf<T>(key), ptx::highOf<T>(key)};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float log = before[e] + sums[t][e];
        q[e] = task_.scale * backward::times(backward::decayOf(log), q[e]);
        k[e] = backward::times(backward::decayOf(end[e] - log), k[e]);
      }
      queryOut = ptx::pack<T>(q[0], q[1]);
      keyOut = ptx::pack<T>(k[0], k[1]);
      ptx::addZeros<T>(zeros, key);
    });
    return ptx::lowOf<T>(zeros) + ptx::highOf<T>(zeros) == 0;
  }
  /// Queries times their decays from the start of their block of 16 tokens, keys to its end, in shared memory, and the
  /// decays of blocks 1 and 2 in place of totals.
  SEQPAR_DEVICE void decayBlocks(const Pair (&sums)[kTokens]) const {
    eachToken(memory_, [&](int t, uint32_t& query, uint32_t& key, uint32_t&, uint32_t&) {
      const int first = t / 16 * 16, last = first + 15;
      Pair q = {ptx::lowOf<T>(query), ptx::highOf<T>(query)}, k = {ptx::lowOf<T>(key), ptx::highOf<T>(key)};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float start = first > 0 ? sums[first > 0 ? first - 1 : 0][e] : 0.f;
        q[e] = backward::times(backward::decayOf(sums[t][e] - start), q[e]);
        k[e] = backward::times(backward::decayOf(sums[last][e] - sums[t][e]), k[e]);
      }
      query = ptx::pack<T>(q[0], q[1]);
      key = ptx::pack<T>(k[0], k[1]);
    });
    SEQPAR_UNROLL
    for (int first = 0; first < kTokens; first += 16) {
      const int block = (slice_ * kTokens + first) / 16;
      if (block != 1 && block != 2) continue;
      Pair decays;
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        decays[e] = backward::decayOf(sums[first + 15][e] - (first > 0 ? sums[first > 0 ? first - 1 : 0][e] : 0.f));
      }
      ptx::storePair(memory_.totals[block - 1] + channel_, decays[0], decays[1]);
    }
  }
  /// After decayBlocks(): the scores of 16 queries with keys of an earlier block, by one of six warps each.
  SEQPAR_DEVICE void scoreBetween(Record& record) const {
    const int warp = ptx::uniform(me_.thread / 32);
    if (warp >= 6) return;
    const int distance = warp < 3   ? 1
                         : warp < 5 ? 2
                                    : 3,
              keys = warp - (warp < 3   ? 0
                             : warp < 5 ? 3
                                        : 5),
              queries = keys + distance;
    const ptx::MatrixRows own = me_.matrixRows();
    float scores[2][4] = {};
    SEQPAR_ROLLED
    for (int step = 0; step < kChannels / 16; ++step) {
      uint32_t a[4], b[4];
      ptx::ldmatrixX4(a, backward::sm90::unitOf<kChunk>(memory_.queries, own.row(queries * 16), 2 * step + own.half()));
      ptx::ldmatrixX4(b, backward::sm90::unitOf<kChunk>(memory_.keys, own.row(keys * 16), 2 * step + own.half()));
      for (int block = keys + 1; block < queries; ++block) {
        SEQPAR_UNROLL
        for (int half = 0; half < 2; ++half) {
          Pair by;
          ptx::loadPair(memory_.totals[block - 1] + step * 16 + half * 8 + me_.c * 2, by[0], by[1]);
          SEQPAR_UNROLL
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            a[i] =
                ptx::pack<T>(backward::times(by[0], ptx::lowOf<T>(a[i])), backward::times(by[1], ptx::highOf<T>(a[i])));
          }
        }
      }
      ptx::mmaM16N8K16<T>(scores[0], a, b[0], b[2]);
      ptx::mmaM16N8K16<T>(scores[1], a, b[1], b[3]);
    }
    SEQPAR_UNROLL
    for (auto& tile : scores) {
      SEQPAR_UNROLL
      for (float& score : tile) score *= task_.scale;
    }
    uint32_t words[4];
    backward::sm90::packTiles<T>(words, scores, 0);
    ptx::store(record.scores[keys][queries * 32 + me_.lane], words);
  }
  /// One warpgroup.
  SEQPAR_DEVICE void multiply(Record& record) const {
    constexpr int kKeySteps = kChunk / 16;
    float scores[kChunk / 8][4];
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kChannels / 16>(
        scores, Operand{memory_.queries, kTilePanelBytes}, kChunk, Operand{memory_.keys, kTilePanelBytes}, kChunk,
        false);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(scores);
    SEQPAR_UNROLL
    for (int step = 0; step < kKeySteps; ++step) {
      SEQPAR_UNROLL
      for (int i = 0; i < 8; ++i) {
        const int key = step * 16 + i / 4 * 8 + me_.c * 2 + i % 2, query = me_.row + i % 4 / 2 * 8;
        float& score = scores[step * 2 + i / 4][i % 4];
        score = key > query ? 0.f : task_.scale * score;
      }
      uint32_t words[4];
      backward::sm90::packTiles<T>(words, scores, 2 * step);
      ptx::store(record.scores[step][me_.inGroup], words);
    }
  }

  static constexpr int kKeys = 4;                ///< of a warp at once, which share the decays
  static constexpr int kPairs = kChannels / 64;  ///< of channels of a lane
  using LaneKeys = float[kKeys][kPairs][2];

  /// The scores within blocks of 16 tokens.
  SEQPAR_DEVICE void scoreBlocks(Record& record) const {
    constexpr int kWarps = kThreads / 32, kGroups = kChunk / kKeys;
    static_assert(2 * kWarps == kGroups);
    const int warp = ptx::uniform(me_.thread / 32);
    SEQPAR_ROLLED
    for (int i = 0; i < 2; ++i) {
      scoreKeys(record, (i == 0 ? warp : kGroups - 1 - warp) * kKeys);
    }
  }
  /// One warp: the scores of kKeys keys from `first` on with the queries of their block. A lane has some channels.
  /// Decays of 0 discard keys that are not finite.
  SEQPAR_DEVICE void scoreKeys(Record& record, int first) const {
    LaneKeys keys;  // times their decays to the query
    SEQPAR_UNROLL
    for (int key = 0; key < kKeys; ++key) {
      SEQPAR_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        const uint32_t word = pairAt(memory_.keys, first + key, pair);
        keys[key][pair][0] = ptx::lowOf<T>(word);
        keys[key][pair][1] = ptx::highOf<T>(word);
      }
    }
    SEQPAR_UNROLL
    for (int query = 0; query < kKeys; ++query) scoreQuery(record, keys, first, first + query, query);
    SEQPAR_ROLLED
    for (int query = first + kKeys; query % 16 != 0; ++query) scoreQuery(record, keys, first, query, kKeys);
  }
  /// `earlier`: number of keys before the query.
  SEQPAR_DEVICE void scoreQuery(Record& record, LaneKeys& keys, int first, int query, int earlier) const {
    float sums[kKeys] = {};
    SEQPAR_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      Pair decays;
      gatesAt(decays, query, (me_.lane * kPairs + pair) * 2);
      const uint32_t word = pairAt(memory_.queries, query, pair);
      const Pair q = {ptx::lowOf<T>(word), ptx::highOf<T>(word)};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float decay = ptx::ex2ApproxOfDecay(backward::bounded(decays[e]));
        SEQPAR_UNROLL
        for (int key = 0; key < kKeys; ++key) {
          float& of = keys[key][pair][e];
          if (key < earlier) of = backward::times(decay, of);
          sums[key] += q[e] * of;
        }
      }
    }
    const float sum = addLanes(sums);
    const int key = first + me_.lane / 8;
    if (me_.lane % 8 == 0 && key <= query) {
      *record.scoreAt(query, key) = static_cast<uint16_t>(ptx::pack<T>(task_.scale * sum, 0));
    }
  }
  /// Two of the lane's channels in a tile.
  SEQPAR_DEVICE uint32_t pairAt(const T* tile, int row, int pair) const {
    const int channel = (me_.lane * kPairs + pair) * 2;
    return *reinterpret_cast<const uint32_t*>(backward::sm90::unitOf<kChunk>(tile, row, channel / 8) + channel % 8);
  }
  /// Sums over the lanes: the result of lanes 8 i to 8 i + 7 is that of sums[i].
  SEQPAR_DEVICE float addLanes(const float (&sums)[kKeys]) const {
    const bool high = (me_.lane & 16) != 0, odd = (me_.lane & 8) != 0;
    float two[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      two[i] = (high ? sums[2 + i] : sums[i]) + ptx::shflXor(high ? sums[i] : sums[2 + i], 16);
    }
    float one = (odd ? two[1] : two[0]) + ptx::shflXor(odd ? two[0] : two[1], 8);
    SEQPAR_UNROLL
    for (int mask = 4; mask > 0; mask /= 2) one += ptx::shflXor(one, mask);
    return one;
  }

  const ChannelChainTask& task_;
  Memory& memory_;
  Half me_;
  ChainItem item_;
  int slice_, channel_;  ///< of this thread; the first of its two channels
  const char* gates_;
};

}  // namespace seqpar::attn::forward_sm90
