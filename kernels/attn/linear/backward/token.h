// A chunk's gradients for any token decays.
#pragma once

#include "kernels/attn/linear/backward/outputs.h"

namespace seqpar::attn::backward {

template <class T, int KD, int VD>
struct TokenChunk {
  using Share = Shares<KD, VD>;
  using Memory = GradientsMemory<T, KD, VD>;
  using Part = ChunkPart<KD>;
  using Products = ChunkProducts<T, KD, VD>;
  using Outputs = ChunkOutputs<T, KD, VD, false>;
  static constexpr int kTiles8 = Columns<KD>::kTiles8;
  static constexpr int kWarps = warpsOf(KD);

  SEQPAR_DEVICE static void run(const Task& task, const Item<T>& item, int64_t token, const float* carry,
                                float* nextCarry, Memory& memory, State<T, KD, VD>& state, const Lane<KD>& me) {
    Raw<T, KD> q, k;
    q.load(memory.q, me);
    Products::template makeMatrices<false>(task.scale, memory, me);
    Part dq, dk;
    Products::multiplyByStates(memory, dq, dk, me);
    scale(task, memory, q, dq, dk, me);
    ptx::syncthreads();
    Products::multiplyByTokens(memory, dq, dk, me);
    q.load(memory.q, me);  // reloaded, because registers are scarce
    k.load(memory.k, me);
    sumGates(memory, q, k, dq, dk, me);
    Outputs::addOwnTerms(memory, q, k, dq, dk, me);
    Outputs::writeQueriesAndKeys(task, item, token, dq, dk, me);
    Outputs::writeValues(task, item, token, memory, me);
    const float decay = decayOf(memory.sums[kChunk - 1]);
    state.decay(decay, decay);
    state.add(memory.nearKeys, memory.dOut, me);
    state.rowSums(memory.before, VD + 8, nextCarry, me);
    ptx::syncthreads();
    writeGates(task, item, token, memory, carry, memory.forgets[(token - item.first) / kChunk % 2], me);
  }

 private:
  /// Scales the state terms of dq and dk, and q for the state's update.
  SEQPAR_DEVICE static void scale(const Task& task, Memory& memory, const Raw<T, KD>& q, Part& dq, Part& dk,
                                  const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float sum = memory.sums[me.token(r)];
      const float begin = decayOf(sum), end = decayOf(memory.sums[kChunk - 1] - sum);
      SEQPAR_UNROLL
      for (int n = 0; n < kTiles8; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          dq[n][r * 2 + e] = task.scale * times(begin, dq[n][r * 2 + e]);
          dk[n][r * 2 + e] = times(end, dk[n][r * 2 + e]);
        }
        const uint32_t pair = q.pair(n, r);
        *pairIn<KD>(memory.nearKeys, n, r, me) =
            ptx::pack<T>(ptx::lowOf<T>(pair) * begin * task.scale, ptx::highOf<T>(pair) * begin * task.scale);
      }
    }
  }

  /// The terms of the decays' gradients from the warp's part of the channels.
  SEQPAR_DEVICE static void sumGates(Memory& memory, const Raw<T, KD>& q, const Raw<T, KD>& k, const Part& dq,
                                     const Part& dk, const Lane<KD>& me) {
    float sum[2] = {0, 0};
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const uint32_t qs = q.pair(n, r), ks = k.pair(n, r);
        sum[r] += ptx::lowOf<T>(qs) * dq[n][r * 2] - ptx::lowOf<T>(ks) * dk[n][r * 2];
        sum[r] += ptx::highOf<T>(qs) * dq[n][r * 2 + 1] - ptx::highOf<T>(ks) * dk[n][r * 2 + 1];
      }
    }
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sum[r] += ptx::shflXor(sum[r], 1);
      sum[r] += ptx::shflXor(sum[r], 2);
      if (me.c == 0) memory.gateTerms[me.part][me.token(r)] = sum[r];
    }
  }

  SEQPAR_DEVICE static void writeGates(const Task& task, const Item<T>& item, int64_t token, const Memory& memory,
                                       const float* carry, const uint8_t* forgets, const Lane<KD>& me) {
    if (me.warpIndex != kWarps - 1 || task.dGates.data == nullptr) return;
    float last = 0;
    for (int i = me.lane; i < KD * Share::kSplits; i += 32) last += carry[i];
    SEQPAR_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) last += ptx::shflXor(last, mask);
    float own[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      own[i] = 0;
      SEQPAR_UNROLL
      for (int p = 0; p < Columns<KD>::kParts; ++p) own[i] += memory.gateTerms[p][me.lane * 2 + i];
    }
    float sum = own[0] + own[1];
    SEQPAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = ptx::shfl(sum, me.lane + distance);
      if (me.lane + distance < 32) sum += other;
    }
    const int rows = item.rowsOf(token);
    const Target& to = task.dGates;
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = me.lane * 2 + i;
      if (row >= rows) continue;
      const float value = forgets[row] != 0 ? 0.f : last + (i == 0 ? sum : sum - own[0]);
      static_cast<float*>(to.data)[item.sequence * to.batch + (token + row) * to.token + item.head * to.head +
                                   (item.keyBlock * task.valueBlocks + item.valueBlock) * to.block] = value;
    }
  }
};

}  // namespace seqpar::attn::backward
