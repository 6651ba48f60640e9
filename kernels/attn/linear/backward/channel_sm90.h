// A chunk's gradients with decays of channels, none of which decays the chunk by less than 2^kLeastTotal: one without
// decays, of q times the decay p from the chunk's beginning and k divided by it; the state's gradient decays before the
// chunk's terms are added.
//
// The gradients of the gates' logarithms are those of the state before the chunk, S * E added up along its rows, less
// q dq - k dk of earlier tokens. q, k, S and dA are rounded; but what two tokens, or a token and S, have of each other
// is in that difference of the same rounded numbers, and what does not pass the gate cancels to the bit. From the state
// after the chunk, which is rounded anew, it would not.
#pragma once

#include "kernels/attn/linear/backward/chunk_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct ChannelConsumer : ChunkConsumer<T, ChannelMemory<T>> {
  using Base = ChunkConsumer<T, ChannelMemory<T>>;
  using Decays = ChannelDecays<T>;
  using Base::chunk, Base::me, Base::memory, Base::task;
  using typename Base::Part, typename Base::Products;

  SEQPAR_WARP void run() {
    const ChunkOperands<T> operands = this->operands();
    const int64_t token = this->token();
    Part dq, dk, dv;
    typename Products::Words restOfDA, restOfA;
    {
      Scores dA, a;
      Products::first(operands, dA, a, dk, me);
      Products::queriesOfState(operands, dq, me);
      warpgroup::commit();
      warpgroup::await<1>();
      warpgroup::settle(dA);
      warpgroup::settle(a);
      warpgroup::settle(dk);
      Products::keepDiagonal(memory.own, dA, 1, me);
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int t = Products::queryOf(e, me), s = Products::keyOf(n, e, me);
          if (s >= t) dA[n][e] = 0;
          if (s > t) a[n][e] = 0;
        }
      }
      typename Products::Words ofDA, ofA;
      Products::pack(ofDA, restOfDA, dA);
      Products::pack(ofA, restOfA, a);
      Roles::syncConsumers();  // v is not read any more
      Products::store(operands.dA, ofDA, me);
      Products::store(operands.a, ofA, me);
    }
    warpgroup::publish();
    Roles::syncConsumers();
    me = me.again();
    warpgroup::begin();
    Products::second(operands, dq, dk, dv, me);
    warpgroup::await<0>();
    warpgroup::settle(dq);
    warpgroup::settle(dk);
    warpgroup::settle(dv);
    Roles::arriveStateRead();
    Roles::syncConsumers();  // nor are the matrices
    Products::store(operands.dA, restOfDA, me);
    Products::store(operands.a, restOfA, me);
    warpgroup::publish();
    Roles::syncConsumers();
    me = me.again();
    warpgroup::begin();
    Products::third(operands, dq, dk, dv, me);
    warpgroup::await<0>();
    warpgroup::settle(dv);
    this->finishProducts(dq, dk, dv, token);
    const Rows dqRows = this->rowsOf(task.dq, token), dkRows = this->rowsOf(task.dkOut, token);
    const float own[2] = {memory.own[me.row], memory.own[me.row + 8]};
    finishTiles<0>(dq, dk, own, dqRows, dkRows);
    finishTiles<2>(dq, dk, own, dqRows, dkRows);
    finishTiles<4>(dq, dk, own, dqRows, dkRows);
    finishTiles<6>(dq, dk, own, dqRows, dkRows);
    dqRows.writePut(memory.q(chunk), me);
    dkRows.writePut(memory.k(chunk), me);
    Roles::arriveDone(chunk);
  }

 private:
  /// Of accumulator tiles n and n + 1: the gates' terms, where v and dOut were; then what tokens have of themselves,
  /// and the decays of dq and dk, which take the places of q and k.
  template <int n>
  SEQPAR_WARP void finishTiles(Part& dq, Part& dk, const float (&own)[2], const Rows& dqRows,
                               const Rows& dkRows) const {
    uint32_t qs[4], ks[4], sums[4];
    loadTiles(qs, memory.q(chunk), n, me);
    loadTiles(ks, memory.k(chunk), n, me);
    memory.decays.load(sums, chunk, n, me);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int tile = n + i / 2, r = i % 2;
      const float qPair[2] = {warp::lowOf<T>(qs[i]), warp::highOf<T>(qs[i])},
                  kPair[2] = {warp::lowOf<T>(ks[i]), warp::highOf<T>(ks[i])},
                  p[2] = {warp::exp2(Decays::lowOf(sums[i])), warp::exp2(Decays::highOf(sums[i]))};
      float &qLow = dq[tile][r * 2], &kLow = dk[tile][r * 2], &qHigh = dq[tile][r * 2 + 1],
            &kHigh = dk[tile][r * 2 + 1];
      warp::storePair(memory.terms(chunk, me.group) + pairIndex(me.row + r * 8, tile, me),
                      qPair[0] * qLow - kPair[0] * kLow, qPair[1] * qHigh - kPair[1] * kHigh);
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float &q1 = e == 0 ? qLow : qHigh, &k1 = e == 0 ? kLow : kHigh;
        q1 = task.scale * p[e] * (q1 + own[r] * kPair[e]);
        k1 = warp::reciprocal(p[e]) * (k1 + own[r] * qPair[e]);
      }
    }
    dqRows.template put<T, n>(memory.q(chunk), dq, me);
    dkRows.template put<T, n>(memory.k(chunk), dk, me);
  }
};

}  // namespace seqpar::attn::backward::sm90
