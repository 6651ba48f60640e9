// A chunk's gradients for any token decays: the decay between two tokens is applied to their score.
//
// An input gate b of the key's token multiplies dA, keys of the state and, at the end, dv. Its gradient is a sum over
// queries of a times dA without b, plus k times the state's term of dk without b (input_gate_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/input_gate_sm90.h"
#include "kernels/attn/linear/backward/token_sweep_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// Producers' steps for token decays. kGated: with input gates.
template <class T, bool kGated>
struct TokenProducer {
  using Memory = TokenMemory<T>;
  using ItemOf = Item<T>;
  static constexpr bool kDecaysFirst = false;  ///< the state's gradient is stored before the chunk's decay
  static constexpr int kLaterGroups = 2;       ///< cp.async groups that copyScaled() does not need

  TokenLogs logs;  ///< of the second warp: input gates

  /// The first warp adds the logarithms, the second one copies the input gates.
  SEQPAR_DEVICE static bool adds(const Half& me) { return me.thread < 32; }
  SEQPAR_DEVICE static bool copies(const Half& me) { return kGated && me.thread / 32 == 1; }

  SEQPAR_DEVICE void load(const Task& task, const Item<T>& item, int chunk, const Half& me) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    if (adds(me)) logs.load(task, item, token, me.lane);
    if (copies(me)) loadInputs(logs.log, task, item, token, me.lane);
  }
  SEQPAR_DEVICE void addUp(const Task&, const Item<T>&, int chunk, Memory& memory, const Half& me) const {
    if (adds(me)) logs.addUp(memory.sums[chunk % 2], memory.forgets[chunk % 2], me.lane);
    if (copies(me)) {
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) memory.inputs[chunk % 2][me.lane * 2 + i] = logs.log[i];
    }
  }

  SEQPAR_DEVICE static bool sweep(const Task& task, const Item<T>& item, const Half& me) {
    return sweepTokens<TokenProducer>(task, item, me);
  }
  /// Multiplies keys by their input gates and decay to the chunk's end.
  SEQPAR_DEVICE static void scaleSwept(int chunk, Memory& memory, const Half& me) {
    T* keys = memory.sweptKeys(chunk);
    const float* sums = memory.sums[chunk % 2];
    const float last = sums[kChunk - 1];
    float factor = decayOf(last - sums[me.row]), factor8 = decayOf(last - sums[me.row + 8]);
    if constexpr (kGated) {
      factor *= memory.inputs[chunk % 2][me.row];
      factor8 *= memory.inputs[chunk % 2][me.row + 8];
    }
    scaleTile(keys, keys, factor, factor8, me);
  }
  SEQPAR_DEVICE static void measure(int, Memory&, const Half&) {}
  SEQPAR_DEVICE static void scale(const Task&, int, Memory&, const Half&) {}
  /// Stores queries times their decay from the chunk's start, and keys times their decay to its end.
  SEQPAR_DEVICE static void copyScaled(const Task& task, int chunk, Memory& memory, const Half& me) {
    const float* sums = memory.sums[chunk % 2];
    const float sum = sums[me.row], sum8 = sums[me.row + 8], last = sums[kChunk - 1];
    scaleTile(memory.queries, memory.q(chunk), task.scale * decayOf(sum), task.scale * decayOf(sum8), me);
    scaleTile(memory.keys, memory.k(chunk), decayOf(last - sum), decayOf(last - sum8), me);
  }
  SEQPAR_DEVICE static void finish(const Task&, const Item<T>&, int, Memory&, const Half&) {}
  SEQPAR_DEVICE static void addTo(const Task&, State<T, Half>& gradient, int chunk, Memory& memory, const Half& me) {
    warpgroup::arrive();
    gradient.add(memory.queries, memory.dOut(chunk), me);
  }

  /// The log-decay of the chunk.
  SEQPAR_DEVICE static float total(int, int chunk, const Memory& memory) { return memory.sums[chunk % 2][kChunk - 1]; }

  /// Reduces row sums of S * E over the lanes and stores them as the carry that a chunk's gates receive from later
  /// tokens.
  SEQPAR_DEVICE static void storeCarry(Memory& memory, int chunk, const float (&rows)[2], const Half& me) {
    float sum = rows[0] + rows[1];
    SEQPAR_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) sum += ptx::shflXor(sum, mask);
    if (me.lane == 0) memory.carry[chunk & 1][me.thread / 32] = sum;
  }
};

template <class T, bool kGated>
struct TokenConsumer : ChunkConsumer<T, TokenMemory<T>> {
  using Base = ChunkConsumer<T, TokenMemory<T>>;
  using Base::chunk, Base::item, Base::me, Base::memory, Base::task;
  using typename Base::Part, typename Base::Products;

  SEQPAR_DEVICE void run() {
    const ChunkOperands<T> operands = this->operands();
    const int64_t token = this->token();
    [[maybe_unused]] const InputGateTerms<T> inputs{memory, chunk, me};
    [[maybe_unused]] float terms[2] = {0, 0};  ///< of this thread's rows
    Part dq, dk, dv;
    {
      Scores dA, a;
      Products::first(operands, dA, a, dk, me);
      Products::queriesOfState(operands, dq, me);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(dA);
      warpgroup::fenceOperand(a);
      warpgroup::fenceOperand(dq);
      warpgroup::fenceOperand(dk);
      Roles::arriveStateRead();
      Products::keepDiagonal(memory.own, dA, task.scale, me);
      float columns[4][2];
      applyDecays(dA, a, columns);
      if constexpr (kGated) {
        inputs.addColumns(columns);
        inputs.template putColumns<2>(columns);
        this->storeMatrices(operands, dA, a);
        inputs.template putColumns<0>(columns);
      } else {
        this->storeMatrices(operands, dA, a);
      }
    }
    const float* sums = sumsOf();
    scaleRows(dq, task.scale * decayOf(sums[me.row]), task.scale * decayOf(sums[me.row + 8]));
    scaleRows(dk, toEnd(0), toEnd(1));
    if constexpr (kGated) {
      inputs.addRows(terms, dk);
      scaleRows(dk, inputs.of(0), inputs.of(1));
    }
    warpgroup::fenceProxyAsync();
    Roles::syncConsumers();
    if constexpr (kGated) inputs.putRows(terms);
    warpgroup::arrive();
    Products::second(operands, dq, dk, dv, me);
    me = me.opaque();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dv);
    if constexpr (kGated) scaleRows(dv, inputs.of(0), inputs.of(1));
    this->finishProducts(dq, dk, dv, token);
    const Rows dqRows = this->rowsOf(task.dq, token), dkRows = this->rowsOf(task.dkOut, token);
    float own[2] = {memory.own[me.row], memory.own[me.row + 8]};
    if constexpr (kGated) {
      own[0] *= inputs.of(0);
      own[1] *= inputs.of(1);
    }
    float sum[2] = {0, 0};
    finishTiles<0>(dq, dk, sum, own, dqRows, dkRows);
    finishTiles<2>(dq, dk, sum, own, dqRows, dkRows);
    finishTiles<4>(dq, dk, sum, own, dqRows, dkRows);
    finishTiles<6>(dq, dk, sum, own, dqRows, dkRows);
    storeSums(sum);
    dqRows.writePut(memory.q(chunk), me);
    dkRows.writePut(memory.k(chunk), me);
    Roles::syncConsumers();
    writeGates(token);
    if constexpr (kGated) inputs.write(task, item, token);
    Roles::arriveDone(chunk);
  }

 private:
  SEQPAR_DEVICE const float* sumsOf() const { return memory.sums[chunk % 2]; }
  SEQPAR_DEVICE float toEnd(int r) const { return decayOf(sumsOf()[kChunk - 1] - sumsOf()[me.row + r * 8]); }

  /// Multiplies dA below the diagonal, and A with the diagonal, by the decays between their tokens; kGated: dA by the
  /// key's input gate, too. `terms`: then this thread's sums over queries of a dA.
  SEQPAR_DEVICE void applyDecays(Scores& dA, Scores& a, [[maybe_unused]] float (&terms)[4][2]) const {
    const float rows[2] = {sumsOf()[me.row], sumsOf()[me.row + 8]};
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      float columns[2];
      ptx::loadPair(sumsOf() + Products::keyOf(n, 0, me), columns[0], columns[1]);
      float inputs[2] = {1, 1};
      if constexpr (kGated) {
        ptx::loadPair(memory.inputs[chunk % 2] + Products::keyOf(n, 0, me), inputs[0], inputs[1]);
        terms[n][0] = terms[n][1] = 0;
      }
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int t = Products::queryOf(e, me), s = Products::keyOf(n, e, me);
        const float decay = decayOf(rows[e / 2] - columns[e % 2]);
        a[n][e] = s <= t ? times(decay, task.scale * a[n][e]) : 0.f;
        if constexpr (kGated) {
          if (s <= t) terms[n][e % 2] += a[n][e] * dA[n][e];
          dA[n][e] *= inputs[e % 2];
        }
        dA[n][e] = s < t ? times(decay, task.scale * dA[n][e]) : 0.f;
      }
    }
  }
  /// For accumulator tiles n and n + 1: computes the gates' terms; then adds the diagonal terms of dq and dk, which
  /// replace q and k.
  template <int n>
  SEQPAR_DEVICE void finishTiles(Part& dq, Part& dk, float (&sum)[2], const float (&own)[2], const Rows& dqRows,
                                 const Rows& dkRows) const {
    uint32_t qs[4], ks[4];
    loadTiles(qs, memory.q(chunk), n, me);
    loadTiles(ks, memory.k(chunk), n, me);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int tile = n + i / 2, r = i % 2;
      const float qPair[2] = {ptx::lowOf<T>(qs[i]), ptx::highOf<T>(qs[i])},
                  kPair[2] = {ptx::lowOf<T>(ks[i]), ptx::highOf<T>(ks[i])};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float &q1 = dq[tile][r * 2 + e], &k1 = dk[tile][r * 2 + e];
        sum[r] += qPair[e] * q1 - kPair[e] * k1;
        q1 += own[r] * kPair[e];
        k1 += own[r] * qPair[e];
      }
    }
    dqRows.template put<T, n>(memory.q(chunk), dq, me);
    dkRows.template put<T, n>(memory.k(chunk), dk, me);
  }
  /// Sums over the warpgroup's channels.
  SEQPAR_DEVICE void storeSums(float (&sum)[2]) const {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sum[r] += ptx::shflXor(sum[r], 1);
      sum[r] += ptx::shflXor(sum[r], 2);
      if (me.c == 0) memory.terms[me.group][me.row + r * 8] = sum[r];
    }
  }

  /// Called by the last warp.
  SEQPAR_DEVICE void writeGates(int64_t token) const {
    const Target& to = task.dGates;
    if (me.thread < Half::kThreads - 32 || to.data == nullptr) return;
    float last = 0;
    SEQPAR_UNROLL
    for (const float carry : memory.carry[chunk & 1]) last += carry;
    float own[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) own[i] = memory.terms[0][me.lane * 2 + i] + memory.terms[1][me.lane * 2 + i];
    writeTokenGates(own, last, memory.forgets[chunk % 2], task, item, token, me.lane);
  }
};

}  // namespace seqpar::attn::backward::sm90
