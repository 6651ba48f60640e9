// All gradients of a segment, in one CTA, for sm_80 and newer, bf16 and fp16. A forward sweep stores the states before
// its chunks in scratch (L2). The chunks are then processed in reverse, with the state's gradient in registers. With S
// the state before a chunk, E the gradient of the state after it, b the decays' logarithms summed from the chunk's
// start, and B their sum at its end:
//
//     dq_t = scale e^b_t (S dO_t)  + sum_(s <= t) dA_ts e^(b_t - b_s) k_s      dA_ts = scale dO_t . v_s
//     dk_s = e^(B - b_s) (E v_s)   + sum_(t >= s) dA_ts e^(b_t - b_s) q_t
//     dv_s = E^T (e^(B - b_s) k_s) + sum_(t >= s) A_ts dO_t                     A_ts = scale q_t . e^(b_t - b_s) k_s
//     dlog(a)_t = sum_(s >= t) (q_s dq_s - k_s dk_s) + rowsum(state after the chunk * E)
//               = rowsum(S * gradient of S) - sum_(s < t) (q_s dq_s - k_s dk_s)
//
// (ZeCO, arXiv 2507.01004, Algorithm 3; the last lines are GLA's, arXiv 2312.06635, with the carry recomputed from each
// chunk's states.) The s = t term cancels analytically in the last lines and is omitted. Channel decays use the last
// form: its terms of S with the chunk's tokens then cancel exactly after rounding, whereas the state after the chunk is
// rounded again. A channel that a chunk forgets uses the other form, because S may be non-finite there.
//
// Work      a CTA of warpsOf(D) warps, ctasOf(D) per SM, takes items (sequence, head, D channels, D columns of v,
//           segment) in steps of the grid; after gradients_sm90.h, only items with a chunk that decays too much
// Roles     all warps alike: each has 16 tokens and a part of the columns of a chunk, and 16 rows of the state's
//           gradient
// Tiles     chunks of 64 tokens x D; S in T, E fp32 in registers
// Smem      GradientsMemory (memory.h): a chunk's q, k, v, dO, S and E, scaled keys, A and dA; the sweep uses the same
//           bytes
// Barriers  __syncthreads() between the steps of a chunk
// Overlap   cp.async loads a chunk, and the next chunk is prefetched to the L2 cache. No overlap with other kernels
#pragma once

#include "kernels/attn/linear/backward/channel_mild.h"
#include "kernels/attn/linear/backward/channel_strong.h"
#include "kernels/attn/linear/backward/token.h"

namespace seqpar::attn::backward {

template <class T, int KD, int VD, bool kChannel>
struct GradientsKernel {
  using Memory = GradientsMemory<T, KD, VD>;
  using Tiles = ChunkTiles<T, KD, VD, kChannel>;
  using Mild = MildChannelChunk<T, KD, VD>;
  static constexpr int kThreads = Columns<KD>::kThreads;
  static_assert(sizeof(SweepMemory<T, KD, VD, kChannel>) <= sizeof(Memory));
  static_assert(kItemBytes + sizeof(Memory) <= ptx::kSharedBytesSm90);

  /// The kernel: each CTA computes the gradients of its items.
  SEQPAR_DEVICE static void run(const Task& task) {
    auto& memory = *reinterpret_cast<Memory*>(ptx::sharedMemory() + kItemBytes);
    auto& sweepMemory = *reinterpret_cast<SweepMemory<T, KD, VD, kChannel>*>(ptx::sharedMemory() + kItemBytes);
    const Lane<KD> me;
    const int64_t chunks = (task.segmentTokens + kChunk - 1) / kChunk;
    T* states = reinterpret_cast<T*>(task.states) + ptx::block() * chunks * KD * VD;
    const int64_t items = int64_t{task.batch} * task.headCount * task.keyBlocks * task.valueBlocks * task.segments;
    for (int64_t index = ptx::block(); index < items; index += ptx::blocks()) {
      const Item<T>& item = itemInMemory<T>(task, index, me.thread);
      State<T, KD, VD> state, gradient;
      state.loadFull(Incoming::before(task, item), task.dv, item.keys, item.values, me);
      float logDecay;
      Sweep<T, KD, VD, kChannel, false>::run(task, item, sweepMemory, state, states, logDecay, me);
      ptx::syncthreads();
      gradient.loadFull(Incoming::after(task, item), task.dv, item.keys, item.values, me);
      gradient.rowSums(state, memory.carry[(item.chunks + 1) % 2], me);
      for (int i = item.chunks - 1; i >= 0; --i) chunk(task, item, i, states, memory, gradient, me);
      if (item.isFirst() && task.dInitial != nullptr) {
        const int64_t head = int64_t{item.sequence} * task.heads + item.head;
        gradient.storeFull(task.dInitial + head * task.dk * task.dv + item.stateOffset(task), task.dv, item.keys,
                           item.values, me);
      }
      ptx::syncthreads();
    }
  }

 private:
  /// Processes one chunk; on return, `state` is the gradient of the state before it.
  SEQPAR_DEVICE static void chunk(const Task& task, const Item<T>& item, int index, const T* states, Memory& memory,
                                  State<T, KD, VD>& state, const Lane<KD>& me) {
    const int64_t token = item.first + int64_t{index} * kChunk;
    const float* carry = memory.carry[index % 2];
    float* nextCarry = memory.carry[(index + 1) % 2];
    Tiles::fetch(task, item, index, states, memory, me.thread);
    Tiles::prefetch(task, item, index - 1, states, me.thread);
    if constexpr (!kChannel) {
      state.store(memory.after, VD + 8, me);
      addUpTokens(task, item, token, memory.sums, memory.forgets[index % 2], me);
    }
    ptx::cpAsyncWaitGroup<kChannel ? 1 : 0>();
    ptx::syncthreads();
    if constexpr (kChannel) {
      ChannelGates<KD> gates;
      gates.addUp(memory.nearKeys, task, memory.totals, me);
      ptx::syncthreads();
      bool mild = true;
      for (int i = me.thread; i < KD; i += kThreads) {
        float total = 0;
        SEQPAR_UNROLL
        for (int t = 0; t < kTiles; ++t) total += memory.totals[t * KD + i];
        memory.chunkDecay[i] = decayOf(total);
        mild = mild && total >= -Mild::kMostDecay;
      }
      ptx::cpAsyncWaitGroup<0>();
      if (ptx::syncthreadsAnd(mild)) {
        Mild::run(task, item, token, nextCarry, memory, gates, state, me);
      } else {
        state = StrongChannelChunk<T, KD, VD>::run(task, item, token, carry, nextCarry, memory, gates, state);
      }
    } else {
      TokenChunk<T, KD, VD>::run(task, item, token, carry, nextCarry, memory, state, me);
    }
  }
};

}  // namespace seqpar::attn::backward
