// A chunk's gradients for any channel decays.
#pragma once

#include "kernels/attn/linear/backward/between_tiles.h"

namespace seqpar::attn::backward {

template <class T, int KD, int VD>
struct StrongChannelChunk {
  using Memory = GradientsMemory<T, KD, VD>;
  using Gates = ChannelGates<KD>;
  using Part = ChunkPart<KD>;
  using Products = ChunkProducts<T, KD, VD>;
  using Outputs = ChunkOutputs<T, KD, VD, true>;
  using Within = WithinTiles<T, KD, VD>;
  using Between = BetweenTiles<T, KD, VD>;
  static constexpr int kTiles8 = Columns<KD>::kTiles8;

  /// Not inlined, so that its many registers do not burden other paths.
  SEQPAR_DEVICE_NOINLINE static State<T, KD, VD> run(const Task& task, const Item<T>& item, int64_t token,
                                                     const float* endCarry, float* beginCarry, Memory& memory,
                                                     const Gates gates, State<T, KD, VD> state) {
    const Lane<KD> me;
    state.store(memory.after, VD + 8, me);
    Raw<T, KD> q, k;
    q.load(memory.q, me);
    k.load(memory.k, me);
    Products::template makeMatrices<true, true>(task.scale, memory, me);
    Between::makeDecays(memory, me.thread);
    ptx::syncthreads();
    Part dq, dk;
    typename Between::Roundings roundings;
    Products::multiplyByStates(memory, dq, dk, me);
    Between::scale(task, memory, gates, q, k, dq, dk, roundings, me);
    Within::multiply(memory, gates, q, k, dq, dk, me);
    ptx::syncthreads();
    Between::template multiply<2>(memory, gates, dq, dk, me);
    ptx::syncthreads();
    Between::finishA(task, memory, me);
    ptx::syncthreads();
    Between::keepRests(memory, gates, q, k, me);
    ptx::syncthreads();
    Between::template multiply<1>(memory, gates, dq, dk, me);
    Part gateSums;
    sumGates(memory, q, k, dq, dk, roundings, gateSums, me);
    Outputs::addOwnTerms(memory, q, k, dq, dk, me);
    Outputs::writeQueriesAndKeys(task, item, token, dq, dk, me);
    ptx::syncthreads();
    const int row = State<T, KD, VD>::row(me);
    state.decay(memory.chunkDecay[row], memory.chunkDecay[row + 8]);
    state.add(memory.q, memory.dOut, me);
    state.rowSums(memory.before, VD + 8, beginCarry, me);
    ptx::syncthreads();
    Outputs::writeChannelGates(task, item, token, memory, &gates, beginCarry, endCarry, gateSums, me);
    Outputs::template writeValues<true>(task, item, token, memory, me);
    ptx::syncthreads();
    return state;
  }

 private:
  /// Sums q dq - k dk, with its rounding corrections, from each token to the end of its tile.
  SEQPAR_DEVICE static void sumGates(Memory& memory, const Raw<T, KD>& q, const Raw<T, KD>& k, const Part& dq,
                                     const Part& dk, const typename Between::Roundings& roundings, Part& sums,
                                     const Lane<KD>& me) {
    SEQPAR_UNROLL
    for (int n = 0; n < kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float term[2];
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          const uint32_t qs = q.pair(n, r), ks = k.pair(n, r);
          const float qValue = e == 0 ? ptx::lowOf<T>(qs) : ptx::highOf<T>(qs);
          const float kValue = e == 0 ? ptx::lowOf<T>(ks) : ptx::highOf<T>(ks);
          const uint32_t both = roundings[n][r];
          term[r] = (e == 0 ? ptx::lowOf<Bf16>(both) : ptx::highOf<Bf16>(both)) +
                    (qValue * dq[n][r * 2 + e] - kValue * dk[n][r * 2 + e]);
        }
        Outputs::addToTileEnd(term[0], term[1], me);
        sums[n][e] = term[0];
        sums[n][e + 2] = term[1];
        if (me.g == 0) memory.gateTotals[me.tile * KD + Gates::column(me, n) + e] = term[0];
      }
    }
  }
};

}  // namespace seqpar::attn::backward
