// The chunks of a rank's tokens that its map depends on: token decays have forgotten the others at the rank's end
// (backward: at its start), so a scan between ranks does not read their maps (launchScanMaps()).
//
// Work      a CTA of 512 threads has two heads of a sequence
// Roles     all threads load decays; warp h finds the chunks of head h
// Tiles     rounds of 8192 tokens, from the rank's end (backward: start), until both heads have forgotten the rest
// Smem      sums of decays of 32 tokens each, and results, about 2 KiB
// Barriers  __syncthreads(), two per round
// Overlap   none
#pragma once

#include "kernels/attn/linear/forward_sm90/segment_chunks_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

struct NeededChunks {
  LinearProblem problem;  ///< Gate::Token, not packed
  int* needed = nullptr;  ///< out: [batch][heads], at least 1
  bool backward = false;

  static constexpr int kHeads = 2, kThreads = 512, kTogether = 16, kRound = kThreads * kTogether,
                       kWarps = kThreads / 32, kHalves = kRound / 32;
  /// The scan multiplies the decays of up to eight segments, each at least 2^-126 or 0. Products below fp32's smallest
  /// normal number are rounded by less than a factor of 2 each, so below this the product is 0.
  static constexpr float kUnreadLog2 = kForgottenLog2 - 10;

  struct Memory {
    float sums[kHeads][kHalves];
    float carry[kHeads];
    int found[kHeads];
  };

  static SEQPAR_BOTH_INLINE int64_t ctas(const LinearProblem& problem) {
    return problem.batch * ((problem.heads + kHeads - 1) / kHeads);
  }
  SEQPAR_DEVICE void run(Memory& memory) const {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int groups = (problem.heads + kHeads - 1) / kHeads, cta = static_cast<int>(blockIdx.x);
    const int batch = cta / groups, head = cta % groups * kHeads;
    const auto chunks = static_cast<int>((problem.tokens + kChunk - 1) / kChunk);
    if (thread < kHeads) {
      memory.carry[thread] = 0;
      memory.found[thread] = head + thread < problem.heads ? 0 : chunks;
    }
    for (int first = 0; first < chunks; first += kRound / kChunk) {
      float own[kHeads][kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int64_t place = int64_t{first} * kChunk + i * kThreads + thread;
        const int64_t token = backward ? place : int64_t{chunks} * kChunk - 1 - place;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const bool there = token >= 0 && token < problem.tokens && head + h < problem.heads;
          own[h][i] = there ? static_cast<const float*>(
                                  problem.gates.data)[batch * problem.gates.batch + token * problem.gates.token +
                                                      (head + h) * problem.gates.head]
                            : 0;
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          float sum = log2Decay(own[h][i]);
#pragma unroll
          for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffU, sum, distance);
          if (lane == 0) memory.sums[h][i * kWarps + warp] = sum;
        }
      }
      __syncthreads();
      if (warp < kHeads) find(memory, warp, lane, first);
      __syncthreads();
      if (memory.found[0] > 0 && memory.found[1] > 0) break;
    }
    if (thread < kHeads && head + thread < problem.heads) {
      const int found = memory.found[thread];
      needed[int64_t{batch} * problem.heads + head + thread] = found > 0 && found < chunks ? found : chunks;
    }
  }

 private:
  /// A warp: continues carry[h], and finds the first chunk of the round after which all others are forgotten.
  static SEQPAR_DEVICE void find(Memory& memory, int h, int lane, int first) {
    constexpr int kEach = kHalves / 2 / 32, kNone = 1 << 30;  // chunks of a lane
    float sums[kEach];
    float own = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int half = 2 * (lane * kEach + i);
      sums[i] = memory.sums[h][half] + memory.sums[h][half + 1];
      own += sums[i];
    }
    float before = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float more = __shfl_up_sync(0xffffffffU, before, distance);
      if (lane >= distance) before += more;
    }
    const float all = __shfl_sync(0xffffffffU, before, 31), carry = memory.carry[h];
    float sum = __shfl_up_sync(0xffffffffU, before, 1);
    sum = carry + (lane == 0 ? 0 : sum);
    int found = kNone;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      sum += sums[i];
      if (found == kNone && sum < kUnreadLog2) found = first + lane * kEach + i + 1;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const int other = __shfl_xor_sync(0xffffffffU, found, distance);
      found = other < found ? other : found;
    }
    if (lane == 0) {
      memory.carry[h] = carry + all;
      if (memory.found[h] == 0 && found != kNone) memory.found[h] = found;
    }
  }
};

/// The items of pass 1 that are needed, in shared memory: for each sequence and head, or pair of heads, the number of
/// segments up to it, and of its chunks.
class NeededItems {
 public:
  static constexpr int kMost = 480;  ///< sequences times heads or pairs
  static constexpr int kBytes = 512 * 4;

  SEQPAR_DEVICE explicit NeededItems(char* shared) : words_(reinterpret_cast<uint32_t*>(shared)) {}

  /// All threads of the CTA, with __syncthreads(). `count`: heads or pairs of a sequence, `together`: heads of each.
  template <Pass P>
  SEQPAR_DEVICE void find(const int* needed, const LinearProblem& problem, const Segments& cut, const HeadRange& heads,
                          int together) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    int chunks = 0, segments = 0;
    if (thread < problem.batch * heads.count) {
      const int64_t head =
          int64_t{thread / heads.count} * problem.heads + heads.first + int64_t{together} * (thread % heads.count);
      for (int h = 0; h < together; ++h) chunks = max(chunks, needed[head + h]);
      if (chunks >= kAllChunks) chunks = static_cast<int>((problem.tokens + kChunk - 1) / kChunk);
      const int64_t last = (problem.tokens - 1) / cut.tokens;  // segment with tokens
      segments = static_cast<int>(P == Pass::Forward ? last + 1 - firstToken(problem, chunks) / cut.tokens
                                                     : (int64_t{chunks} * kChunk - 1) / cut.tokens + 1);
    }
    int sum = segments;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int more = __shfl_up_sync(0xffffffffU, sum, distance);
      if (lane >= distance) sum += more;
    }
    if (lane == 31) words_[kMost + warp] = static_cast<uint32_t>(sum);
    __syncthreads();
    for (int i = 0; i < warp; ++i) sum += static_cast<int>(words_[kMost + i]);
    if (thread < kMost)
      words_[thread] =
          static_cast<uint32_t>(sum) << kChunkBits | static_cast<uint32_t>(chunks < kAllChunks ? chunks : kAllChunks);
    __syncthreads();
  }
  /// Segments of all heads.
  SEQPAR_DEVICE int count(const LinearProblem& problem, const HeadRange& heads) const {
    return upTo(static_cast<int>(problem.batch) * heads.count - 1);
  }
  /// The tokens and segment of item `number` of count(); `heads`: as for find().
  template <Pass P>
  SEQPAR_DEVICE Item at(int number, const LinearProblem& problem, const Segments& cut, const HeadRange& heads) const {
    int low = 0, high = static_cast<int>(problem.batch) * heads.count - 1;  // the first place with upTo() > number
    while (low < high) {
      const int middle = (low + high) / 2;
      if (upTo(middle) > number) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const int segment = number - (low == 0 ? 0 : upTo(low - 1));
    const int chunks = static_cast<int>(words_[low] & kAllChunks);
    const int64_t first = chunks == kAllChunks ? 0 : firstToken(problem, chunks), end = int64_t{chunks} * kChunk;
    Item item;
    item.batch = low / heads.count;
    item.head = heads.first + low % heads.count;
    item.segment = segment + (P == Pass::Forward ? static_cast<int>(first / cut.tokens) : 0);
    item.begin = item.segment * cut.tokens;
    item.end = min(item.begin + cut.tokens, problem.tokens);
    if (P == Pass::Forward) item.begin = max(item.begin, first);
    if (P == Pass::Backward && chunks != kAllChunks) item.end = min(item.end, end);
    item.before = item.segment;
    item.after = cut.count - 1 - item.segment;
    return item;
  }

 private:
  static constexpr int kChunkBits = 19, kAllChunks = (1 << kChunkBits) - 1;

  static SEQPAR_DEVICE int64_t firstToken(const LinearProblem& problem, int chunks) {
    return ((problem.tokens + kChunk - 1) / kChunk - chunks) * kChunk;
  }
  SEQPAR_DEVICE int upTo(int place) const {
    return static_cast<int>(words_[place] >> kChunkBits);
  }

  uint32_t* words_;
};

}  // namespace seqpar::attn::forward_sm90
