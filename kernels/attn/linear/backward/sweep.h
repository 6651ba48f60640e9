// One pass over a segment that computes its map, state and log-decay: forward of k and v, reverse of q and dOut. For
// sm_80 and newer, bf16 and fp16: a part of the gradients' kernel, and the kernel segmentMaps.
//
// Work      a CTA of warpsOf(D) warps, ctasOf(D) per SM, takes items (sequence, head, D channels, D columns, segment)
//           in steps of the grid
// Roles     all warps alike: each decays 16 tokens of a part of the channels, and has 16 rows of the state
// Tiles     chunks of 64 tokens x D; the state D x D fp32 in registers
// Smem      SweepMemory: two stages of keys and values, gates, their sums
// Barriers  __syncthreads(): a chunk is loaded; its gates are added; its keys are decayed; its stage is free
// Overlap   cp.async loads one chunk ahead. No overlap with other kernels
#pragma once

#include "kernels/attn/linear/backward/state.h"

namespace seqpar::attn::backward {

/// Shared memory of a sweep. Two stages of tiles: one is processed while the other is loaded.
template <class T, int KD, int VD, bool kChannel>
struct SweepMemory {
  T keys[2][kChunk * (KD + 8)];
  T values[2][kChunk * (VD + 8)];
  alignas(16) char gates[2][kChannel ? ChannelGates<KD>::kBytes : 16];
  float totals[kTiles * KD];  ///< channel gates: per tile of tokens
  float sums[kChunk];         ///< other gates
  uint8_t forgets[kChunk];
};

template <class T, int KD, int VD, bool kChannel, bool kReverse>
struct Sweep {
  using Memory = SweepMemory<T, KD, VD, kChannel>;

  SEQPAR_DEVICE static int64_t tokenOf(const Item<T>& item, int step) {
    return item.first + int64_t{kReverse ? item.chunks - 1 - step : step} * kChunk;
  }
  SEQPAR_DEVICE static void fetch(const Task& task, const Item<T>& item, int step, Memory& memory, int thread) {
    if (step < item.chunks) {
      const int64_t token = tokenOf(item, step);
      const int rows = item.rowsOf(token);
      const Input& keys = kReverse ? task.q : task.k;
      const Input& values = kReverse ? task.dOut : task.v;
      fetchTile<KD>(memory.keys[step % 2], (kReverse ? item.q : item.k) + token * keys.token, keys.token, rows,
                    item.keys, thread);
      fetchTile<VD>(memory.values[step % 2], (kReverse ? item.dOut : item.v) + token * values.token, values.token, rows,
                    item.values, thread);
      if constexpr (kChannel) ChannelGates<KD>::fetch(memory.gates[step % 2], task, item, token, thread);
    }
    ptx::cpAsyncCommitGroup();
  }

  /// Computes the segment's end state in `state`. `keep`: receives the state before each chunk, [KD][VD]; NULL: not
  /// stored. logDecay: of this thread's channel (in the first KD threads), or of the token decays, to base 2.
  SEQPAR_DEVICE static void run(const Task& task, const Item<T>& item, Memory& memory, State<T, KD, VD>& state, T* keep,
                                float& logDecay, const Lane<KD>& me) {
    const float scale = kReverse ? task.scale : 1.f;
    logDecay = 0;
    fetch(task, item, 0, memory, me.thread);
    for (int step = 0; step < item.chunks; ++step) {
      const int64_t token = tokenOf(item, step);
      T* keys = memory.keys[step % 2];
      fetch(task, item, step + 1, memory, me.thread);
      if (keep != nullptr) state.store(keep + int64_t{step} * KD * VD, VD, me);
      ChannelGates<KD> gates;
      if constexpr (!kChannel) addUpTokens(task, item, token, memory.sums, memory.forgets, me);
      ptx::cpAsyncWaitGroup<1>();
      ptx::syncthreads();
      if constexpr (kChannel) {
        gates.addUp(memory.gates[step % 2], task, memory.totals, me);
        ptx::syncthreads();
      }
      scaleKeys(keys, gates, memory, scale, me);
      float factor = 0, factor8 = 0;
      if constexpr (kChannel) {
        for (int t = 0; t < kTiles; ++t) {
          factor += memory.totals[t * KD + State<T, KD, VD>::row(me)];
          factor8 += memory.totals[t * KD + State<T, KD, VD>::row(me) + 8];
          if (me.thread < KD) logDecay += memory.totals[t * KD + me.thread];
        }
      } else {
        factor = factor8 = memory.sums[kChunk - 1];
        logDecay += factor;
      }
      ptx::syncthreads();
      state.decay(decayOf(factor), decayOf(factor8));
      state.add(keys, memory.values[step % 2], me);
      ptx::syncthreads();
    }
    ptx::cpAsyncWaitGroup<0>();
  }

 private:
  /// Multiplies keys by their decay to the chunk's end, queries by their decay from its start.
  SEQPAR_DEVICE static void scaleKeys(T* keys, const ChannelGates<KD>& gates, const Memory& memory, float scale,
                                      const Lane<KD>& me) {
    Raw<T, KD> raw;
    raw.load(keys, me);
    SEQPAR_UNROLL
    for (int n = 0; n < Columns<KD>::kTiles8; ++n) {
      float before[2] = {0, 0}, own[2] = {0, 0}, after[2] = {0, 0};
      if constexpr (kChannel) {
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          SEQPAR_UNROLL
          for (int t = 0; t < kTiles; ++t) {
            const float total = memory.totals[t * KD + ChannelGates<KD>::column(me, n) + e];
            before[e] += t < me.tile ? total : 0.f;
            own[e] += t == me.tile ? total : 0.f;
            after[e] += t > me.tile ? total : 0.f;
          }
        }
      }
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        float factor[2];
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          if constexpr (kChannel) {
            const float sum = gates.sum[n][r * 2 + e];
            factor[e] = decayOf(kReverse ? sum + before[e] : (own[e] - sum) + after[e]);
          } else {
            const float sum = memory.sums[me.token(r)];
            factor[e] = decayOf(kReverse ? sum : memory.sums[kChunk - 1] - sum);
          }
        }
        const uint32_t pair = raw.pair(n, r);
        *pairIn<KD>(keys, n, r, me) =
            ptx::pack<T>(ptx::lowOf<T>(pair) * factor[0] * scale, ptx::highOf<T>(pair) * factor[1] * scale);
      }
    }
  }
};

/// The kernel: each CTA computes the maps of its items.
template <class T, int KD, int VD, bool kChannel, bool kReverse>
SEQPAR_DEVICE void segmentMaps(const Task& task) {
  using S = Sweep<T, KD, VD, kChannel, kReverse>;
  auto& memory = *reinterpret_cast<typename S::Memory*>(ptx::sharedMemory() + kItemBytes);
  const Lane<KD> me;
  const int64_t items = int64_t{task.batch} * task.headCount * task.keyBlocks * task.valueBlocks * task.segments;
  for (int64_t index = ptx::block(); index < items; index += ptx::blocks()) {
    const Item<T>& item = itemInMemory<T>(task, index, me.thread);
    State<T, KD, VD> state;
    clear(state.x);
    float logDecay;
    S::run(task, item, memory, state, nullptr, logDecay, me);
    state.storeFull(task.maps.states + item.map * task.dk * task.dv + item.stateOffset(task), task.dv, item.keys,
                    item.values, me);
    if (item.valueBlock != 0) continue;
    if (item.ends()) logDecay = -INFINITY;
    if (kChannel && me.thread < item.keys) {
      task.maps.transitions[item.map * task.dk + item.keyBlock * kBlock + me.thread] = logDecay * kLn2;
    }
    if (!kChannel && me.thread == 0 && item.keyBlock == 0) task.maps.transitions[item.map] = logDecay * kLn2;
  }
}

}  // namespace seqpar::attn::backward
