// A chunk's gradients with channel decays, if no channel's decay over the chunk is less than 2^-kMostDecay: gradients
// without decays, for q times the decay p from the chunk's start, and k divided by it.
#pragma once

#include "kernels/attn/linear/backward/outputs.h"

namespace seqpar::attn::backward {

template <class T, int KD, int VD>
struct MildChannelChunk {
  using Memory = GradientsMemory<T, KD, VD>;
  using Gates = ChannelGates<KD>;
  using Part = ChunkPart<KD>;
  using Products = ChunkProducts<T, KD, VD>;
  using Outputs = ChunkOutputs<T, KD, VD, true>;
  static constexpr int kTiles8 = Columns<KD>::kTiles8;

  /// The strongest decay of a chunk, as a negative power of 2, if keys are divided by decays in T.
  static constexpr float kMostDecay = std::is_same_v<T, Bf16> ? 40 : 8;

  /// Decays the state's gradient before the chunk's terms are added.
  SEQPAR_DEVICE static void run(const Task& task, const Item<T>& item, int64_t token, float* beginCarry, Memory& memory,
                                const Gates& gates, State<T, KD, VD>& state, const Lane<KD>& me) {
    const int row = State<T, KD, VD>::row(me);
    state.decay(memory.chunkDecay[row], memory.chunkDecay[row + 8]);
    state.store(memory.after, VD + 8, me);
    Raw<T, KD> q, k;
    q.load(memory.q, me);
    k.load(memory.k, me);
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      float before[2] = {0, 0};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        SEQPAR_UNROLL
        for (int t = 0; t < kTiles - 1; ++t) {
          before[e] += t < me.tile ? memory.totals[t * KD + Gates::column(me, n) + e] : 0.f;
        }
      }
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        float p[2], inverse[2];
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          p[e] = decayOf(gates.sum[n][r * 2 + e] + before[e]);
          inverse[e] = ptx::rcpApprox(p[e]);
        }
        ptx::storePair(decayIn(memory, n, r, me), p[0], p[1]);
        const uint32_t qs = q.pair(n, r), ks = k.pair(n, r);
        *pairIn<KD>(memory.q, n, r, me) =
            ptx::pack<T>(ptx::lowOf<T>(qs) * task.scale * p[0], ptx::highOf<T>(qs) * task.scale * p[1]);
        *pairIn<KD>(memory.k, n, r, me) = ptx::pack<T>(ptx::lowOf<T>(ks) * inverse[0], ptx::highOf<T>(ks) * inverse[1]);
      }
    }
    Products::template makeMatrices<true>(1, memory, me);
    ptx::syncthreads();

    Products::makeScaledA(memory, me);
    Part dq, dk;
    Products::multiplyByStates(memory, dq, dk, me);
    Products::multiplyByTokens(memory, dq, dk, me);
    finish(task, memory, dq, dk, me);
    Outputs::writeQueriesAndKeys(task, item, token, dq, dk, me);
    ptx::syncthreads();
    state.add(memory.q, memory.dOut, me);
    state.rowSums(memory.before, VD + 8, beginCarry, me);
    ptx::syncthreads();
    Part gateSums;
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        ptx::loadPair(decayIn(memory, n, r, me), gateSums[n][r * 2], gateSums[n][r * 2 + 1]);
      }
    }
    Outputs::writeChannelGates(task, item, token, memory, nullptr, beginCarry, nullptr, gateSums, me);
    Outputs::writeValues(task, item, token, memory, me);
    ptx::syncthreads();
  }

 private:
  /// Computes the gates' sums, which replace the decays, adds the diagonal terms, and applies the decays of dq and dk.
  SEQPAR_DEVICE static void finish(const Task& task, Memory& memory, Part& dq, Part& dk, const Lane<KD>& me) {
    float own[2];
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) own[r] = memory.ownTerms[me.token(r)];
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      float q[2][2], k[2][2], term[2][2];
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const uint32_t qs = *pairIn<KD>(memory.q, n, r, me), ks = *pairIn<KD>(memory.k, n, r, me);
        q[r][0] = ptx::lowOf<T>(qs);
        q[r][1] = ptx::highOf<T>(qs);
        k[r][0] = ptx::lowOf<T>(ks);
        k[r][1] = ptx::highOf<T>(ks);
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          float &q1 = dq[n][r * 2 + e], &k1 = dk[n][r * 2 + e];
          term[r][e] = q[r][e] * q1 - k[r][e] * k1;
          q1 += own[r] * k[r][e];
          k1 += own[r] * q[r][e];
        }
      }
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        Outputs::addToTileEnd(term[0][e], term[1][e], me);
        if (me.g == 0) memory.gateTotals[me.tile * KD + Gates::column(me, n) + e] = term[0][e];
      }
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        float p[2];
        float* at = decayIn(memory, n, r, me);
        ptx::loadPair(at, p[0], p[1]);
        ptx::storePair(at, term[r][0], term[r][1]);
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          dq[n][r * 2 + e] *= task.scale * p[e];
          dk[n][r * 2 + e] *= ptx::rcpApprox(p[e]);
        }
      }
    }
  }

  /// Address of a thread's pair of decays, which replace the gates' tile.
  SEQPAR_DEVICE static float* decayIn(Memory& memory, int n, int r, const Lane<KD>& me) {
    return reinterpret_cast<float*>(memory.nearKeys) + me.token(r) * (KD + 8) + Gates::column(me, n);
  }
};

}  // namespace seqpar::attn::backward
