// A chunk's gradients with decays of tokens, any of them: what is between two tokens is applied to their score.
#pragma once

#include "kernels/attn/linear/backward/scores_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct TokenChunk {
  using Memory = TokenMemory<T>;
  using P = GradientsPlace;
  using Part = P::Part;
  using StateOf = State<T, P>;
  using Products = ChunkProducts<T>;

  const Task& task;
  const Item<T>& item;
  Memory& memory;
  P me;
  int index;
  int64_t token;
  T *q, *k, *v, *dOut;
  const float* sums;

  SEQPAR_WARP TokenChunk(const Task& theTask, const Item<T>& theItem, Memory& theMemory, const P& place, int theIndex)
      : task(theTask),
        item(theItem),
        memory(theMemory),
        me(place),
        index(theIndex),
        token(theItem.first + int64_t{theIndex} * kChunk) {
    q = memory.q[index % 2];
    k = memory.k[index % 2];
    v = memory.v[index % 2];
    dOut = memory.dOut[index % 2];
    sums = memory.sums[index % 2];
  }

  /// What the first warp adds up beforehand.
  SEQPAR_WARP static bool adds(const P& me) { return me.thread < 32; }

  SEQPAR_WARP static void fetchFirst(const Task& task, const Item<T>& item, Memory& memory, const P& me) {
    const int index = item.chunks - 1;
    memory.fetch(task, item, index, me.thread);
    warp::commitCopies();
    if (adds(me)) {
      const int64_t token = item.first + int64_t{index} * kChunk;
      TokenLogs logs;
      logs.load(task, item, token, me.lane);
      logs.addUp(task, token, memory.sums[index % 2], memory.forgets[index % 2], me.lane);
    }
  }

  /// One chunk; leaves in `state` the gradient of the state before it. The gates' gradients of a chunk are written
  /// while the one before it is worked on.
  SEQPAR_WARP static void run(const Task& task, const Item<T>& item, int index, const T* states, Memory& memory,
                              StateOf& state, const P& me) {
    TokenChunk chunk(task, item, memory, me, index);
    warp::awaitCopies<0>();
    warpgroup::publish();
    warp::syncBlock();
    memory.fetchState(states, index, me.thread);
    warp::commitCopies();
    if (index > 0) memory.fetch(task, item, index - 1, me.thread);
    warp::commitCopies();
    TokenLogs logs;
    if (adds(me) && index > 0) logs.load(task, item, chunk.token - kChunk, me.lane);
    if (index + 1 < item.chunks) writeGates(task, item, index + 1, memory, me);
    state.store(memory.after, me);
    chunk.me = me.again();
    chunk.scaleTiles();
    chunk.me = me.again();
    warp::awaitCopies<1>();
    warpgroup::publish();
    warp::syncBlock();
    chunk.multiply(state);
    if (adds(me) && index > 0) {
      logs.addUp(task, chunk.token - kChunk, memory.sums[(index - 1) % 2], memory.forgets[(index - 1) % 2], me.lane);
    }
  }

  SEQPAR_WARP void scaleTiles() {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float begin = task.scale * decayOf(sums[me.row + r * 8]), end = toEnd(r);
      SEQPAR_UNROLL
      for (int n = 0; n < P::kTiles8; ++n) {
        const uint32_t qs = *pairAt(q, n, r, me), ks = *pairAt(k, n, r, me);
        *pairAt(memory.queries, n, r, me) = warp::pack<T>(warp::lowOf<T>(qs) * begin, warp::highOf<T>(qs) * begin);
        *pairAt(memory.keys, n, r, me) = warp::pack<T>(warp::lowOf<T>(ks) * end, warp::highOf<T>(ks) * end);
      }
    }
  }

  SEQPAR_WARP void multiply(StateOf& state) {
    const ChunkOperands<T> operands{
        q, k, v, dOut, memory.queries, memory.keys, memory.before, memory.after, v, v + kTilePanel};
    Part dq, dk, dv;
    Scores dA, a;
    const float decay = decayOf(sums[kChunk - 1]);
    state.decay(decay, decay);
    Products::first(operands, dA, a, dq, dk, dv, me);
    warpgroup::await<0>();
    warpgroup::settle(dA);
    warpgroup::settle(a);
    warpgroup::settle(dq);
    warpgroup::settle(dk);
    warpgroup::settle(dv);
    Products::keepDiagonal(memory.own, dA, task.scale, me);
    applyDecays(dA, a);
    scaleRows(dq, task.scale * decayOf(sums[me.row]), task.scale * decayOf(sums[me.row + 8]));
    scaleRows(dk, toEnd(0), toEnd(1));
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

    me = me.again();
    float sum[2] = {0, 0};
    finish(dq, dk, sum);
    Rows(task.dq, item, token, keyOffset(task.dq, item), item.keys, me).template write<T>(dq, 0, me);
    Rows(task.dkOut, item, token, keyOffset(task.dkOut, item), item.keys, me).template write<T>(dk, 0, me);
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sum[r] += warp::shuffleXor(sum[r], 1);
      sum[r] += warp::shuffleXor(sum[r], 2);
      if (me.c == 0) memory.terms[me.group][me.row + r * 8] = sum[r];
    }
    warpgroup::await<0>();
    warpgroup::settle(state.x);
    me = me.again();
    float rows[2];
    state.rowSums(rows, memory.before, me);
    storeCarry(memory, index - 1, rows, me);
  }

  /// Sums, of which each lane has a part, become what the gates of chunk `to` get.
  SEQPAR_WARP static void storeCarry(Memory& memory, int to, const float (&rows)[2], const P& me) {
    float sum = rows[0] + rows[1];
    SEQPAR_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) sum += warp::shuffleXor(sum, mask);
    if (me.lane == 0) memory.carry[to & 1][me.thread / 32] = sum;
  }

  /// Of chunk `index`, by the last warp.
  SEQPAR_WARP static void writeGates(const Task& task, const Item<T>& item, int index, const Memory& memory,
                                     const P& me) {
    const Target& to = task.dGates;
    if (me.thread < P::kThreads - 32 || to.data == nullptr) return;
    const int64_t token = item.first + int64_t{index} * kChunk;
    float last = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < 16; ++i) last += memory.carry[index % 2][i];
    float own[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      own[i] = 0;
      SEQPAR_UNROLL
      for (int group = 0; group < 4; ++group) own[i] += memory.terms[group][me.lane * 2 + i];
    }
    float sum = own[0] + own[1];
    SEQPAR_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = warp::shuffle(sum, me.lane + distance);
      if (me.lane + distance < 32) sum += other;
    }
    const int rows = item.rowsOf(token);
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = me.lane * 2 + i;
      if (row >= rows) continue;
      const float value = memory.forgets[index % 2][row] != 0 ? 0.f : last + (i == 0 ? sum : sum - own[0]);
      static_cast<float*>(to.data)[item.sequence * to.batch + (token + row) * to.token + item.head * to.head +
                                   (item.keyBlock * task.valueBlocks + item.valueBlock) * to.block] = value;
    }
  }

 private:
  SEQPAR_WARP float toEnd(int r) const { return decayOf(sums[kChunk - 1] - sums[me.row + r * 8]); }

  /// dA below the diagonal, and A with the diagonal, times the decays between their tokens.
  SEQPAR_WARP void applyDecays(Scores& dA, Scores& a) const {
    const float rows[2] = {sums[me.row], sums[me.row + 8]};
    SEQPAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      float columns[2];
      warp::loadPair(sums + Products::keyOf(n, 0, me), columns[0], columns[1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int t = Products::queryOf(e, me), s = Products::keyOf(n, e, me);
        const float decay = decayOf(rows[e / 2] - columns[e % 2]);
        dA[n][e] = s < t ? times(decay, task.scale * dA[n][e]) : 0.f;
        a[n][e] = s <= t ? times(decay, task.scale * a[n][e]) : 0.f;
      }
    }
  }
  SEQPAR_WARP static void scaleRows(Part& part, float factor, float factor8) {
    SEQPAR_UNROLL
    for (int n = 0; n < P::kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) part[n][e] = times(e < 2 ? factor : factor8, part[n][e]);
    }
  }

  /// The gates' terms; then what tokens have of themselves.
  SEQPAR_WARP void finish(Part& dq, Part& dk, float (&sum)[2]) {
    const float own[2] = {memory.own[me.row], memory.own[me.row + 8]};
    SEQPAR_UNROLL
    for (int n = 0; n < P::kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        const uint32_t qs = *pairAt(q, n, r, me), ks = *pairAt(k, n, r, me);
        const float qPair[2] = {warp::lowOf<T>(qs), warp::highOf<T>(qs)},
                    kPair[2] = {warp::lowOf<T>(ks), warp::highOf<T>(ks)};
        SEQPAR_UNROLL
        for (int e = 0; e < 2; ++e) {
          float &q1 = dq[n][r * 2 + e], &k1 = dk[n][r * 2 + e];
          sum[r] += qPair[e] * q1 - kPair[e] * k1;
          q1 += own[r] * kPair[e];
          k1 += own[r] * qPair[e];
        }
      }
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
