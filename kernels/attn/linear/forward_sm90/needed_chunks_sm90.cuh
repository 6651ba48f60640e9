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
  /// The scan reads maps until the product of their decays is below kReadDecay, one bit above this.
  static constexpr float kUnreadLog2 = kFlushedLog2;

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
    const float* const gates = static_cast<const float*>(problem.gates.data) + batch * problem.gates.batch +
                               int64_t{head} * problem.gates.head;
    static_assert(kHeads == 2, "a load has both heads");
    const bool adjacent = problem.gates.head == 1 && problem.gates.token % 2 == 0 && head + 1 < problem.heads &&
                          reinterpret_cast<uintptr_t>(gates) % sizeof(float2) == 0;
    for (int first = 0; first < chunks; first += kRound / kChunk) {
      float own[kHeads][kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int64_t place = int64_t{first} * kChunk + i * kThreads + thread;
        const int64_t token = backward ? place : int64_t{chunks} * kChunk - 1 - place;
        const bool there = token >= 0 && token < problem.tokens;
        const float* const at = gates + token * problem.gates.token;
        if (adjacent) {
          const float2 two = there ? *reinterpret_cast<const float2*>(at) : make_float2(0, 0);
          own[0][i] = two.x;
          own[1][i] = two.y;
        } else {
#pragma unroll
          for (int h = 0; h < kHeads; ++h) {
            own[h][i] = there && head + h < problem.heads ? at[h * problem.gates.head] : 0;
          }
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

}  // namespace seqpar::attn::forward_sm90
