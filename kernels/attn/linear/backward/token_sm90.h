// A chunk's gradients for any token decays: the decay between two tokens is applied to their score.
//
// An input gate b of the key's token multiplies dA, keys of the state and, at the end, dv. Its gradient is a sum over
// queries of a times dA without b, plus k times the state's term of dk without b (input_gate_sm90.h).
#pragma once

#include "kernels/attn/linear/backward/input_gate_sm90.h"
#include "kernels/attn/linear/backward/terms_sm90.h"
#include "kernels/attn/linear/backward/token_sweep_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct TokenMemory : LoadedTiles<T, 1> {
  static constexpr int kWarps = Half::kThreads / 32;
  alignas(1024) T matrices[2][kTilePanel];  ///< dA and A
  float sums[2][kChunk];
  float factors[2][kChunk];      ///< of queries: the scale times decays from the chunk's start
  float inverses[2][kChunk];     ///< inverse decays from the chunk's start
  float inputs[2][kChunk];       ///< input gates, if there are any
  float terms[2][kChunk];        ///< sums of q dq - k dk over each warpgroup's channels
  float columnTerms[4][kChunk];  ///< of the input gates' gradients: sums over a warp's queries
  float keyTerms[2][kChunk];     ///< the same: sums over each warpgroup's channels of k dk from the state
  float own[kChunk];             ///< dA of a token with itself
  uint8_t forgets[2][kChunk];
  float carry[2][kWarps];  ///< sum of S * E at the ends of two chunks, per warp
  alignas(16) char item[kItemBytes];
};

/// Producers' steps for token decays. kGated: with input gates.
template <class T, bool kGated>
struct TokenProducer {
  using Memory = TokenMemory<T>;
  using ItemOf = Item<T>;

  TokenLogs logs;  ///< of the second warp: input gates

  /// The first warp adds the logarithms, the second one copies the input gates.
  SEQPAR_DEVICE static bool adds(const Half& me) { return me.thread < 32; }
  SEQPAR_DEVICE static bool copies(const Half& me) { return kGated && me.thread / 32 == 1; }

  SEQPAR_DEVICE void load(const Task& task, const Item<T>& item, int chunk, const Half& me) {
    const int64_t token = item.first + int64_t{chunk} * kChunk;
    if (adds(me)) logs.load(task, item, token, me.lane);
    if (copies(me)) loadInputs(logs.log, task, item, token, me.lane);
  }
  SEQPAR_DEVICE void addUp(const Task& task, const Item<T>&, int chunk, Memory& memory, const Half& me) const {
    if (adds(me)) {
      float* sums = memory.sums[chunk % 2];
      logs.addUp(sums, memory.forgets[chunk % 2], me.lane);
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float sum = sums[me.lane * 2 + i];
        memory.factors[chunk % 2][me.lane * 2 + i] = task.scale * decayOf(sum);
        memory.inverses[chunk % 2][me.lane * 2 + i] = ptx::ex2Approx(-sum);
      }
    }
    if (copies(me)) {
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) memory.inputs[chunk % 2][me.lane * 2 + i] = logs.log[i];
    }
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
  /// Adds queries times their decays from the chunk's start, times dOut.
  SEQPAR_DEVICE static void addTo(State<T, Half>& gradient, int chunk, Memory& memory, const Half& me) {
    constexpr int kSteps = kChunk / 16, kAtOnce = 2;
    const ptx::MatrixRowsAcross own{me.lane};
    const int row = own.row(), unit = me.warpIndex * 2 + own.half();
    const T* queries = memory.q(chunk) + me.group * kTilePanel + row * kPanel + (unit ^ row % 8) * 8;
    uint32_t words[kAtOnce][4];  ///< 16 tokens of this warp's 16 channels
    SEQPAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint32_t(&own)[4] = words[step % kAtOnce];
      if (step >= kAtOnce) warpgroup::wait<kAtOnce - 1>();
      ptx::ldmatrixX4Trans(own, queries + step * 16 * kPanel);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        float low, high;
        ptx::loadPair(memory.factors[chunk % 2] + step * 16 + i / 2 * 8 + me.c * 2, low, high);
        own[i] = ptx::pack<T>(ptx::lowOf<T>(own[i]) * low, ptx::highOf<T>(own[i]) * high);
      }
      warpgroup::arrive();
      gradient.add(own, memory.dOut(chunk), step, me);
      warpgroup::commit();
    }
    warpgroup::wait<0>();
    warpgroup::fenceOperand(gradient.x);
  }

  /// Whether a product of a factor of a query and one of a key is exact to rounding; else, both may be 0 or infinite.
  SEQPAR_DEVICE static bool decaysLittle(int chunk, const Memory& memory) {
    return total(0, chunk, memory) >= kLeastOfFactors;
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

/// kWide: a segment has several blocks of keys, which a CTA processes one after the other.
template <class T, bool kGated, bool kWide>
struct TokenConsumer : TermsConsumer<T, TokenMemory<T>> {
  using Base = TermsConsumer<T, TokenMemory<T>>;
  using Base::chunk, Base::item, Base::me, Base::memory, Base::task;
  using typename Base::Part, typename Base::Products;

  SEQPAR_DEVICE void run() {
    const int64_t token = this->token();
    Part dq, dk, dv;
    {
      Scores dA, a;
      if (item.values <= kFewSteps * 16) {
        startProducts<kFewSteps>(dA, a, dq, dk);
      } else {
        startProducts<kBlock / 16>(dA, a, dq, dk);
      }
      if (chunk + 1 < item.chunks) TokenConsumer{{task, item, memory, me.opaque(), chunk + 1}}.finish();
      warpgroup::wait<1>();
      warpgroup::fenceOperand(dA);
      warpgroup::fenceOperand(a);
      Roles::syncConsumers();  // no warp reads terms of the chunk after this one
      Products::keepDiagonal(memory.own, dA, task.scale, me);
      applyDecays(dA, a);
      Products::store(memory.matrices[0], dA, me);
      Products::store(memory.matrices[1], a, me);
    }
    me = me.opaque();
    warpgroup::fenceProxyAsync();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dq);
    warpgroup::fenceOperand(dk);
    Roles::arriveStateRead();
    decayRows(dq, task.scale * fromStart(0), task.scale * fromStart(1));
    decayRows(dk, toEnd(0), toEnd(1));
    if constexpr (kGated) {
      storeKeyTerms(dk);
      multiplyRows(dk, input(0), input(1));
    }
    Roles::syncConsumers();  // the matrices are stored
    warpgroup::fenceOperand(dq);
    warpgroup::fenceOperand(dk);
    warpgroup::arrive();
    multiplyKeys(dv);
    warpgroup::commit();
    multiplyMatrix(dq, dk);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dv);
    Roles::arriveRead();
    decayRows(dv, toEnd(0), toEnd(1));
    warpgroup::fenceOperand(dv);
    warpgroup::arrive();
    Products::addValues(memory.matrices[1], memory.dOut(chunk), dv, me);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dq);
    warpgroup::fenceOperand(dk);
    me = me.opaque();
    Roles::awaitAdded();  // the other warpgroups have read this one's columns of the chunk's tiles
    if (ptx::kIsBf16<T> && task.dq.scales != nullptr) {
      finishTerms(dq, dk, token);
    } else {
      finishRows(dq, dk, token);
    }
    me = me.opaque();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dv);
    Roles::syncOwn(me);  // no warp reads its columns of dOut
    if constexpr (kGated) multiplyRows(dv, input(0), input(1));
    this->template writeValues<kWide>(dv, token, item.valueBlock * kBlock, item.values);
  }
  /// Writes the gates' gradients of the chunk: after run() and a barrier, and before terms of another chunk are stored.
  SEQPAR_DEVICE void finish() {
    const int64_t token = this->token();
    writeGates(token);
    if constexpr (kGated) writeInputGates(token);
    Roles::arriveDone(chunk);
  }

 private:
  SEQPAR_DEVICE const float* sumsOf() const { return memory.sums[chunk % 2]; }
  SEQPAR_DEVICE float fromStart(int r) const { return decayOf(sumsOf()[me.row + r * 8]); }
  SEQPAR_DEVICE float toEnd(int r) const { return decayOf(sumsOf()[kChunk - 1] - sumsOf()[me.row + r * 8]); }
  /// The input gate of this thread's row r.
  SEQPAR_DEVICE float input(int r) const { return kGated ? memory.inputs[chunk % 2][me.row + r * 8] : 1.f; }
  SEQPAR_DEVICE bool decaysLittle() const { return TokenProducer<T, kGated>::decaysLittle(chunk, memory); }
  SEQPAR_DEVICE void decayRows(Part& part, float factor, float factor8) const {
    if (decaysLittle()) {
      multiplyRows(part, factor, factor8);
    } else {
      scaleRows(part, factor, factor8);
    }
  }

  static constexpr int kFewSteps = 5;  ///< of products over the columns of v: up to 80
  template <int kSteps>
  SEQPAR_DEVICE void startProducts(Scores& dA, Scores& a, Part& dq, Part& dk) const {
    warpgroup::arrive();
    multiplyScores<kSteps>(dA, a);
    warpgroup::commit();
    multiplyStates<kSteps>(dq, dk);
    warpgroup::commit();
  }
  /// Columns of 32 keys of dA and A.
  template <int kSteps>
  SEQPAR_DEVICE void multiplyScores(Scores& dA, Scores& a) const {
    const int row = me.group * 32 * kPanel;
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kSteps>(
        dA, Operand{memory.dOut(chunk)}, kChunk, Operand{memory.v(chunk) + row}, kChunk, false);
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, 8>(a, Operand{memory.q(chunk)}, kChunk,
                                                                     Operand{memory.k(chunk) + row}, kChunk, false);
  }
  /// The states' terms of dq and dk.
  template <int kSteps>
  SEQPAR_DEVICE void multiplyStates(Part& dq, Part& dk) const {
    const int row = me.firstColumn * kPanel;
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kSteps>(dk, Operand{memory.v(chunk)}, kChunk,
                                                                          Operand{memory.after + row}, kBlock, false);
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, kSteps>(dq, Operand{memory.dOut(chunk)}, kChunk,
                                                                          Operand{memory.before + row}, kBlock, false);
  }
  SEQPAR_DEVICE void multiplyKeys(Part& dv) const {
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, 8>(
        dv, Operand{memory.k(chunk)}, kChunk, Operand{me.columnsOf(memory.after, kMatrixPanel)}, kBlock, false);
  }
  SEQPAR_DEVICE void multiplyMatrix(Part& dq, Part& dk) const {
    const Operand dA{memory.matrices[0]};
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, 4>(
        dq, dA, kChunk, Operand{me.columnsOf(memory.k(chunk), kTilePanel)}, kChunk, true);
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(
        dk, dA, kChunk, Operand{me.columnsOf(memory.q(chunk), kTilePanel)}, kChunk, true);
  }

  /// Multiplies dA below the diagonal, and A with the diagonal, by the decays between their tokens; kGated: dA by the
  /// key's input gate, too, and stores sums over the warp's queries of a dA without it.
  SEQPAR_DEVICE void applyDecays(Scores& dA, Scores& a) const {
    if (decaysLittle()) {
      applyDecays<true>(dA, a);
    } else {
      applyDecays<false>(dA, a);
    }
  }
  /// kLittle: decays are products of one factor of each token, which takes fewer instructions.
  template <bool kLittle>
  SEQPAR_DEVICE void applyDecays(Scores& dA, Scores& a) const {
    const float* queries = kLittle ? memory.factors[chunk % 2] : sumsOf();
    const float* keys = kLittle ? memory.inverses[chunk % 2] : queries;
    const float ofQueries[2] = {queries[me.row], queries[me.row + 8]};
    [[maybe_unused]] float columnSums[8];
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      float columns[2], inputs[2] = {1, 1};
      ptx::loadPair(keys + Products::keyOf(n, 0, me), columns[0], columns[1]);
      if constexpr (kGated) {
        ptx::loadPair(memory.inputs[chunk % 2] + Products::keyOf(n, 0, me), inputs[0], inputs[1]);
        columnSums[n * 2] = columnSums[n * 2 + 1] = 0;
      }
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int tokens = Products::distance(n, e, me);
        const float decay =
            kLittle ? ofQueries[e / 2] * columns[e % 2] : task.scale * decayOf(ofQueries[e / 2] - columns[e % 2]);
        const auto decayed = [&](float x) { return kLittle ? decay * x : times(decay, x); };
        a[n][e] = tokens >= 0 ? decayed(a[n][e]) : 0.f;
        if constexpr (kGated) {
          if (tokens >= 0) columnSums[n * 2 + e % 2] += a[n][e] * dA[n][e];
          dA[n][e] *= inputs[e % 2];
        }
        dA[n][e] = tokens > 0 ? decayed(dA[n][e]) : 0.f;
      }
    }
    if constexpr (kGated) {
      memory.columnTerms[me.warpIndex][Products::keyOf(me.g / 2, me.g % 2, me)] = Products::sumOfLanes(columnSums, me);
    }
  }
  /// Stores sums of k times the state's term of dk, without input gates.
  SEQPAR_DEVICE void storeKeyTerms(const Part& dk) const {
    float sums[2] = {0, 0};
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; n += 2) {
      uint32_t words[4];
      loadTiles(words, memory.k(chunk), n, me);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = dk[n + i / 2] + i % 2 * 2;
        sums[i % 2] += ptx::lowOf<T>(words[i]) * pair[0];
        sums[i % 2] += ptx::highOf<T>(words[i]) * pair[1];
      }
    }
    storeSums(memory.keyTerms[me.group], sums);
  }
  /// Writes dq and dk, and stores the gates' terms.
  SEQPAR_DEVICE void finishRows(Part& dq, Part& dk, int64_t token) const {
    const Rows dqRows = this->rowsOf(task.dq, token), dkRows = this->rowsOf(task.dkOut, token);
    eachTiles(dq, dk, [&]<int n>(std::integral_constant<int, n>) {
      dqRows.template put<T, n>(memory.q(chunk), dq, me);
      dkRows.template put<T, n>(memory.k(chunk), dk, me);
    });
    dqRows.writePut(memory.q(chunk), me);
    dkRows.writePut(memory.k(chunk), me);
  }
  /// The same for terms with scales.
  SEQPAR_DEVICE void finishTerms(Part& dq, Part& dk, int64_t token) const {
    eachTiles(dq, dk, [](auto) {});
    this->writeTerms(
        dq, dk, token, [&] { return item.valueBlock * task.dq.block; },
        [&] { return item.head * task.valueBlocks + item.valueBlock; }, [&] { return task.heads * task.valueBlocks; });
  }
  /// Completes dq and dk, stores the gates' terms, and calls done(n) after tiles n and n + 1.
  template <class Done>
  SEQPAR_DEVICE void eachTiles(Part& dq, Part& dk, const Done& done) const {
    const float own[2] = {memory.own[me.row] * input(0), memory.own[me.row + 8] * input(1)};
    float sum[2] = {0, 0};
    const auto finish = [&]<int n>(std::integral_constant<int, n> constant) {
      finishTiles<n>(dq, dk, sum, own);
      done(constant);
    };
    finish(std::integral_constant<int, 0>());
    finish(std::integral_constant<int, 2>());
    finish(std::integral_constant<int, 4>());
    finish(std::integral_constant<int, 6>());
    storeSums(memory.terms[me.group], sum);
  }
  /// For accumulator tiles n and n + 1: computes the gates' terms; then adds the diagonal terms of dq and dk.
  template <int n>
  SEQPAR_DEVICE void finishTiles(Part& dq, Part& dk, float (&sum)[2], const float (&own)[2]) const {
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
        sum[r] += qPair[e] * q1;
        sum[r] -= kPair[e] * k1;
        q1 += own[r] * kPair[e];
        k1 += own[r] * qPair[e];
      }
    }
  }
  /// Adds over the warpgroup's channels.
  SEQPAR_DEVICE void storeSums(float* to, float (&sum)[2]) const {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      sum[r] += ptx::shflXor(sum[r], 1);
      sum[r] += ptx::shflXor(sum[r], 2);
      if (me.c == 0) to[me.row + r * 8] = sum[r];
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
    writeTokenGates<kWide>(own, last, memory.forgets[chunk % 2], task, item, token, me.lane);
  }
  /// Called by the warp before that.
  SEQPAR_DEVICE void writeInputGates(int64_t token) const {
    if (me.thread / 32 != Half::kThreads / 32 - 2) return;
    float sums[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = me.lane * 2 + i;
      sums[i] = memory.keyTerms[0][row] + memory.keyTerms[1][row];
      SEQPAR_UNROLL
      for (int warp = 0; warp < 4; ++warp) sums[i] += memory.columnTerms[warp][row];
    }
    writeInputs<kWide>(sums, task, item, token, me.lane);
  }
};

}  // namespace seqpar::attn::backward::sm90
