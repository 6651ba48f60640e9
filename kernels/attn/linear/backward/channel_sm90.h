// A chunk's gradients with decays of channels, none of which decays the chunk by less than 2^kLeastTotal: one without
// decays, of q times the decay p from the chunk's beginning and k divided by it; the state's gradient decays before the
// chunk's terms are added.
#pragma once

#include "kernels/attn/linear/backward/scores_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// A chunk as consumers have it.
template <class T>
struct ChannelConsumer {
  using Memory = ChannelMemory<T>;
  using Decays = ChannelDecays<T>;
  using Part = Half::Part;
  using Products = ChunkProducts<T>;

  const Task& task;
  const Item<T>& item;
  Memory& memory;
  Half me;
  int chunk;

  SEQPAR_WARP void run() {
    const ChunkOperands<T> operands{memory.q(chunk),    memory.k(chunk), memory.v(chunk),
                                    memory.dOut(chunk), memory.k(chunk), memory.before,
                                    memory.after,       memory.v(chunk), memory.v(chunk) + kTilePanel};
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    Part dq, dk, dv;
    {
      Scores dA, a;
      Products::first(operands, dA, a, dk, me);
      warpgroup::await<0>();
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
      Roles::syncConsumers();  // v is not read any more
      Products::store(operands.dA, dA, me);
      Products::store(operands.a, a, me);
    }
    warpgroup::publish();
    Roles::syncConsumers();
    me = me.again();
    warpgroup::begin();
    Products::queriesOfState(operands, dq, me);  // only now: all at once do not fit in registers
    Products::second(operands, dq, dk, dv, me);
    warpgroup::await<1>();
    warpgroup::settle(dv);
    Roles::arriveStateRead();
    Roles::awaitAdded();
    Roles::arriveRead();
    Rows(task.dvOut, item, token, item.keyBlock * task.dvOut.block + item.valueBlock * kBlock, item.values)
        .template writeThrough<T>(memory.dOut(chunk), dv, me);
    me = me.again();
    warpgroup::await<0>();
    warpgroup::settle(dq);
    warpgroup::settle(dk);
    Roles::syncConsumers();  // nor are dA and A
    Part& terms = dv;
    const Rows dqRows(task.dq, item, token, keyOffset(task.dq, item), item.keys),
        dkRows(task.dkOut, item, token, keyOffset(task.dkOut, item), item.keys);
    const float own[2] = {memory.own[me.row], memory.own[me.row + 8]};
    finishTiles<0>(dq, dk, terms, own, dqRows, dkRows);
    finishTiles<2>(dq, dk, terms, own, dqRows, dkRows);
    finishTiles<4>(dq, dk, terms, own, dqRows, dkRows);
    finishTiles<6>(dq, dk, terms, own, dqRows, dkRows);
    dqRows.writePut(memory.q(chunk), me);
    dkRows.writePut(memory.k(chunk), me);
    addUpTerms(terms);
    Roles::syncOwn(me);
    writeGates(terms, token);
    Roles::arriveDone(chunk);
  }

 private:
  /// Sums of q dq - k dk over tile 1, 2 or 3 of 16 tokens, where dA and A were.
  SEQPAR_WARP float* tile(int index) const { return reinterpret_cast<float*>(memory.v(chunk)) + index * kBlock; }

  /// Of accumulator tiles n and n + 1: the gates' terms; then what tokens have of themselves, and the decays of dq and
  /// dk, which take the places of q and k.
  template <int n>
  SEQPAR_WARP void finishTiles(Part& dq, Part& dk, Part& terms, const float (&own)[2], const Rows& dqRows,
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
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float &q1 = dq[tile][r * 2 + e], &k1 = dk[tile][r * 2 + e];
        terms[tile][r * 2 + e] = qPair[e] * q1 - kPair[e] * k1;
        q1 = task.scale * p[e] * (q1 + own[r] * kPair[e]);
        k1 = warp::reciprocal(p[e]) * (k1 + own[r] * qPair[e]);
      }
    }
    dqRows.template put<T, n>(memory.q(chunk), dq, me);
    dkRows.template put<T, n>(memory.k(chunk), dk, me);
  }

  /// To the end of tiles of 16 tokens.
  SEQPAR_WARP void addUpTerms(Part& terms) const {
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) addToTileEnd(terms[n][e], terms[n][e + 2]);
      if (me.g == 0 && me.warpIndex > 0) {
        warp::storePair(tile(me.warpIndex) + me.column(n), terms[n][0], terms[n][1]);
      }
    }
  }

  /// Sums from rows g and g + 8 to the last row of the tile.
  SEQPAR_WARP void addToTileEnd(float& first, float& second) const {
    SEQPAR_UNROLL
    for (int distance = 1; distance < 8; distance *= 2) {
      const float a = warp::shuffle(first, me.lane + distance * 4), b = warp::shuffle(second, me.lane + distance * 4);
      if (me.g + distance < 8) {
        first += a;
        second += b;
      }
    }
    first += warp::shuffle(second, me.c);
  }

  SEQPAR_WARP void writeGates(Part& terms, int64_t token) const {
    const Target& to = task.dGates;
    if (to.data == nullptr) return;
    const float* carry = memory.carry[chunk & 1] + me.column(0);
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; ++n) {
      float low, high;
      warp::loadPair(carry + n * 8, low, high);
      SEQPAR_UNROLL
      for (int t = 1; t < kTiles; ++t) {
        float tileLow, tileHigh;
        warp::loadPair(tile(t) + me.column(n), tileLow, tileHigh);
        low += t > me.warpIndex ? tileLow : 0.f;
        high += t > me.warpIndex ? tileHigh : 0.f;
      }
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        terms[n][r * 2] += low;
        terms[n][r * 2 + 1] += high;
      }
    }
    Rows(to, item, token, keyOffset(to, item), item.keys).template write<Bf16>(terms, me);
  }
};

}  // namespace seqpar::attn::backward::sm90
