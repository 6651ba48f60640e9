// A chunk's gradients with decays of channels, none of which decays the chunk by less than 2^kLeastTotal: one without
// decays, of q times the decay p from the chunk's beginning and k divided by it; the state's gradient decays before the
// chunk's terms are added.
#pragma once

#include "kernels/attn/linear/backward/scores_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct ChannelChunk {
  using Memory = ChannelMemory<T>;
  using P = GradientsPlace;
  using Part = P::Part;
  using StateOf = State<T, P>;
  using Products = ChunkProducts<T>;
  /// How little of a number may be left at a chunk's end, in powers of 2, for keys to be divided by it in T.
  static constexpr float kLeastTotal = std::is_same_v<T, Bf16> ? -40 : -8;

  const Task& task;
  const Item<T>& item;
  Memory& memory;
  P me;
  int64_t token;
  T *q, *k, *v, *dOut;

  SEQPAR_WARP ChannelChunk(const Task& theTask, const Item<T>& theItem, Memory& theMemory, const P& place, int index)
      : task(theTask), item(theItem), memory(theMemory), me(place), token(theItem.first + int64_t{index} * kChunk) {
    q = memory.q[index % 2];
    k = memory.k[index % 2];
    v = memory.v[index % 2];
    dOut = memory.dOut[index % 2];
  }

  SEQPAR_WARP static void fetchFirst(const Task& task, const Item<T>& item, Memory& memory, const P& me) {
    memory.fetch(task, item, item.chunks - 1, me.thread);
    memory.gates.fetch(task, item, item.first + int64_t{item.chunks - 1} * kChunk, me);
    warp::commitCopies();
  }

  /// One chunk; leaves in `state` the gradient of the state before it.
  SEQPAR_WARP static void run(const Task& task, const Item<T>& item, int index, const T* states, Memory& memory,
                              StateOf& state, const P& me) {
    ChannelChunk chunk(task, item, memory, me, index);
    warp::awaitCopies<0>();
    warpgroup::publish();
    warp::syncBlock();
    memory.fetchState(states, index, me.thread);
    warp::commitCopies();
    if (index > 0) {
      memory.fetch(task, item, index - 1, me.thread);
      ChannelSums<P>::prefetch(task, item, chunk.token - kChunk, me.thread);
    }
    warp::commitCopies();
    memory.gates.addUp(task, 0, me);
    chunk.me = me.again();
    chunk.scale(state);
    chunk.me = me.again();
    warp::awaitCopies<1>();
    warpgroup::publish();
    warp::syncBlock();
    chunk.multiply(state, index);
  }

  /// q becomes q p scale, k becomes k / p; the state's gradient decays and becomes an operand.
  SEQPAR_WARP void scale(StateOf& state) {
    const ChannelSums<P>& gates = memory.gates;
    const int row = StateOf::row(me);
    state.decay(decayOf(gates.total(row)), decayOf(gates.total(row + 8)));
    state.store(memory.after, me);
    SEQPAR_UNROLL
    for (int n = 0; n < P::kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        float low, high;
        gates.load(low, high, n, r, me);
        low = decayOf(low);
        high = decayOf(high);
        uint32_t *qs = pairAt(q, n, r, me), *ks = pairAt(k, n, r, me);
        *qs = warp::pack<T>(warp::lowOf<T>(*qs) * task.scale * low, warp::highOf<T>(*qs) * task.scale * high);
        *ks = warp::pack<T>(warp::lowOf<T>(*ks) * warp::reciprocal(low), warp::highOf<T>(*ks) * warp::reciprocal(high));
      }
    }
  }

  SEQPAR_WARP void multiply(StateOf& state, int index) {
    const ChunkOperands<T> operands{q, k, v, dOut, q, k, memory.before, memory.after, v, v + kTilePanel};
    Part dq, dk, dv;
    Scores dA, a;
    Products::first(operands, dA, a, dq, dk, dv, me);
    warpgroup::await<0>();
    warpgroup::settle(dA);
    warpgroup::settle(a);
    warpgroup::settle(dq);
    warpgroup::settle(dk);
    warpgroup::settle(dv);
    Products::keepDiagonal(memory.own, dA, 1, me);
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int t = Products::queryOf(e, me), s = Products::keyOf(n, e, me);
        if (s >= t) dA[n][e] = 0;
        if (s > t) a[n][e] = 0;
      }
    }
    warp::syncBlock();  // v is not read any more
    Products::store(operands.dA, dA, me);
    Products::store(operands.a, a, me);
    warpgroup::publish();
    warp::syncBlock();
    Products::second(operands, dq, dk, dv, state, me);
    me = me.again();
    warpgroup::await<2>();
    warpgroup::settle(dv);
    Rows(task.dvOut, item, token, item.keyBlock * task.dvOut.block + item.valueBlock * kBlock, item.values, me)
        .template write<T>(dv, 0, me);
    me = me.again();
    warpgroup::await<1>();
    warpgroup::settle(dq);
    warpgroup::settle(dk);

    Part terms;
    me = me.again();
    finish(dq, dk, terms);
    me = me.again();
    Rows(task.dq, item, token, keyOffset(task.dq, item), item.keys, me).template write<T>(dq, 0, me);
    Rows(task.dkOut, item, token, keyOffset(task.dkOut, item), item.keys, me).template write<T>(dk, 0, me);
    warp::syncBlock();
    if (index > 0) memory.gates.fetch(task, item, token - kChunk, me);
    warp::commitCopies();
    writeGates(terms);
    warpgroup::await<0>();
    warpgroup::settle(state.x);
    me = me.again();
    float sums[2];
    state.rowSums(sums, memory.before, me);
    storeCarry(memory, sums, me);
  }

  /// Row sums, of which each of four lanes has a part, become what the next chunk's gates get.
  SEQPAR_WARP static void storeCarry(Memory& memory, float (&sums)[2], const P& me) {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sums[r] += warp::shuffleXor(sums[r], 1);
      sums[r] += warp::shuffleXor(sums[r], 2);
      if (me.c == 0) memory.carry[StateOf::panel(me)][StateOf::row(me) + r * 8] = sums[r];
    }
  }

 private:
  /// The gates' terms, added up to the end of tiles of 16 tokens, and what comes after the chunk; then what tokens have
  /// of themselves, and the decays of dq and dk.
  SEQPAR_WARP void finish(Part& dq, Part& dk, Part& terms) {
    const float own[2] = {memory.own[me.row], memory.own[me.row + 8]};
    SEQPAR_UNROLL
    for (int n = 0; n < P::kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const uint32_t qs = *pairAt(q, n, r, me), ks = *pairAt(k, n, r, me);
        const float qPair[2] = {warp::lowOf<T>(qs), warp::highOf<T>(qs)},
                    kPair[2] = {warp::lowOf<T>(ks), warp::highOf<T>(ks)};
        float sums[2];
        memory.gates.load(sums[0], sums[1], n, r, me);
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float p = decayOf(sums[e]);
          float &q1 = dq[n][r * 2 + e], &k1 = dk[n][r * 2 + e];
          terms[n][r * 2 + e] = qPair[e] * q1 - kPair[e] * k1;
          q1 = task.scale * p * (q1 + own[r] * kPair[e]);
          k1 = warp::reciprocal(p) * (k1 + own[r] * qPair[e]);
        }
      }
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) addToTileEnd(terms[n][e], terms[n][e + 2]);
      if (me.g == 0 && me.warpIndex > 0) {
        warp::storePair(memory.tile(me.warpIndex) + me.column(n), terms[n][0], terms[n][1]);
      }
      float low0, high0, low1, high1;
      warp::loadPair(memory.carry[0] + me.column(n), low0, high0);
      warp::loadPair(memory.carry[1] + me.column(n), low1, high1);
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        terms[n][r * 2] += low0 + low1;
        terms[n][r * 2 + 1] += high0 + high1;
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

  SEQPAR_WARP void writeGates(Part& terms) const {
    const Target& to = task.dGates;
    if (to.data == nullptr) return;
    SEQPAR_ROLL
    for (int t = me.warpIndex + 1; t < kTiles; ++t) {
      const float* later = memory.tile(t) + me.column(0);
      SEQPAR_UNROLL
      for (int n = 0; n < P::kTiles8; ++n) {
        float low, high;
        warp::loadPair(later + n * 8, low, high);
        SEQPAR_UNROLL
        for (int r = 0; r < 2; ++r) {
          terms[n][r * 2] += low;
          terms[n][r * 2 + 1] += high;
        }
      }
    }
    Rows(to, item, token, keyOffset(to, item), item.keys, me).template write<Bf16>(terms, 0, me);
  }
};

}  // namespace seqpar::attn::backward::sm90
