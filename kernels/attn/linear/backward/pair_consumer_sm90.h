// The consumers' steps of a chunk of two heads (pair_sm90.h).
//
// A is computed once, and multiplied by each head's decays. dA is the sum of both heads' dA times their decays and
// input gates, so its products with queries and keys are computed once, and dq and dk are sums over the heads.
//
// The gates' gradients are sums over each head's q dq - k dk. Within the chunk, these are row and column sums of A dA,
// taken from the same fp32 values, so that errors cancel; from the state, of q times that head's term of dq before the
// heads are added, and of v times the state's term of dv, which is the sum of k times that head's term of dk.
#pragma once

#include "kernels/attn/linear/backward/pair_sm90.h"
#include "kernels/attn/linear/backward/terms_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T, bool kGated, bool kWide>
struct PairConsumer : TermsConsumer<T, PairMemory<T>> {
  using Base = TermsConsumer<T, PairMemory<T>>;
  using Base::chunk, Base::item, Base::me, Base::memory, Base::task;
  using typename Base::Part, typename Base::Products;

  SEQPAR_DEVICE void run() {
    const int64_t token = this->token();
    float rows[2][2];  ///< this thread's terms in memory.rowTerms, per head
    Part dq, dk, other;
    {
      Scores dA[2], a;
      warpgroup::arrive();
      multiplyScores(dA, a);
      warpgroup::commit();
      multiplyState<0>(dk, memory.v(chunk), memory.after);
      warpgroup::commit();
      if (chunk + 1 < item.chunks) PairConsumer{{task, item, memory, me.opaque(), chunk + 1}}.finish();
      warpgroup::wait<1>();
      warpgroup::fenceOperand(dA[0]);
      warpgroup::fenceOperand(dA[1]);
      warpgroup::fenceOperand(a);
      Roles::syncConsumers();  // no warp reads terms of the chunk after this one
      if constexpr (kGated) keepDiagonal(dA, a);
      clearUpper(dA, a);
      applyDecays<0>(dA, a, rows[0]);
      me = me.opaque();
      applyDecays<1>(dA, a, rows[1]);
      Products::store(memory.matrices[0], dA[0], me);
    }
    me = me.opaque();
    warpgroup::arrive();
    multiplyState<1>(other, memory.v(chunk), memory.after);
    warpgroup::commit();
    multiplyState<0>(dq, memory.dOut(chunk), memory.before);
    warpgroup::commit();
    warpgroup::fenceProxyAsync();
    Roles::syncConsumers();  // the matrices are stored
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dk);
    warpgroup::fenceOperand(other);
    add(dk, other, [&](int h, int r) { return toEnd(h, r) * input(h, r); });
    warpgroup::fenceOperand(other);
    warpgroup::arrive();
    multiplyState<1>(other, memory.dOut(chunk), memory.before);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dq);
    sumRows<0>(dq, rows[0]);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(other);
    Roles::arriveStateRead();
    sumRows<1>(other, rows[1]);
    add(dq, other, [&](int h, int r) { return task.scale * fromStart(h, r); });
    me = me.opaque();
    warpgroup::fenceOperand(dq);
    warpgroup::fenceOperand(dk);
    Part& dv = other;  // of head me.group
    warpgroup::arrive();
    multiplyKeys(dv);
    warpgroup::commit();
    multiplyMatrix(dq, dk);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dv);
    Roles::arriveRead();
    finishKeys(dv);
    warpgroup::fenceOperand(dv);
    warpgroup::arrive();
    multiplyOutputs(dv);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dq);
    warpgroup::fenceOperand(dk);
    me = me.opaque();
    Roles::awaitAdded();  // the other warpgroups have read this one's columns of the chunk's tiles
    writeTerms(dq, dk, token);
    me = me.opaque();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dv);
    Roles::syncOwn(me);  // no warp reads its columns of dOut
    if constexpr (kGated) multiplyRows(dv, input(me.group, 0), input(me.group, 1));
    this->template writeValues<kWide>(dv, token, me.group * (task.dvOut.head - kPanel), kBlock);
  }
  /// Writes the gates' gradients of the chunk: after run(), and before terms of another chunk are stored.
  SEQPAR_DEVICE void finish() {
    const int64_t token = this->token();
    writeGates(token);
    if constexpr (kGated) writeInputGates(token);
    Roles::arriveDone(chunk);
  }

 private:
  SEQPAR_DEVICE const float* sumsOf(int h) const { return memory.sums[chunk % 2][h]; }
  SEQPAR_DEVICE float fromStart(int h, int r) const { return decayOf(sumsOf(h)[me.row + r * 8]); }
  SEQPAR_DEVICE float toEnd(int h, int r) const { return decayOf(sumsOf(h)[kChunk - 1] - sumsOf(h)[me.row + r * 8]); }
  /// The input gate of this thread's row r.
  SEQPAR_DEVICE float input(int h, int r) const { return kGated ? memory.inputs[chunk % 2][h][me.row + r * 8] : 1.f; }

  /// Columns of 32 keys of both heads' dA, and of A.
  SEQPAR_DEVICE void multiplyScores(Scores (&dA)[2], Scores& a) const {
    const int row = me.group * 32 * kPanel;
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, 4>(
          dA[h], Operand{memory.dOut(chunk) + h * kTilePanel}, kChunk, Operand{memory.v(chunk) + h * kTilePanel + row},
          kChunk, false);
    }
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, 8>(
        a, Operand{memory.q(chunk), kTilePanelBytes}, kChunk, Operand{memory.k(chunk) + row, kTilePanelBytes}, kChunk,
        false);
  }
  /// Head kHead's columns of `tile` times its columns of a state.
  template <int kHead>
  SEQPAR_DEVICE void multiplyState(Part& to, const T* tile, const T* state) const {
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, 4>(
        to, Operand{tile + kHead * kTilePanel}, kChunk, Operand{state + kHead * kMatrixPanel + me.firstColumn * kPanel},
        kBlock, false);
  }
  SEQPAR_DEVICE void multiplyKeys(Part& dv) const {
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, 8>(dv, Operand{memory.k(chunk), kTilePanelBytes}, kChunk,
                                                                Operand{me.columnsOf(memory.after, kMatrixPanel)},
                                                                kBlock, false);
  }
  SEQPAR_DEVICE void multiplyMatrix(Part& dq, Part& dk) const {
    const Operand dA{memory.matrices[0]};
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, 4>(
        dq, dA, kChunk, Operand{me.columnsOf(memory.k(chunk), kTilePanel)}, kChunk, true);
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(
        dk, dA, kChunk, Operand{me.columnsOf(memory.q(chunk), kTilePanel)}, kChunk, true);
  }
  SEQPAR_DEVICE void multiplyOutputs(Part& dv) const {
    warpgroup::multiplyAll<T, Terms::Rows, Terms::Rows, 4>(dv, Operand{memory.matrices[1 + me.group]}, kChunk,
                                                           Operand{me.columnsOf(memory.dOut(chunk), kTilePanel)},
                                                           kChunk, true);
  }

  /// Whether no decay of the chunk is 0: it can then be applied as a factor that is not tested.
  SEQPAR_DEVICE bool decaysLittle(int h) const { return PairProducer<T, kGated>::decaysLittle(h, chunk, memory); }
  /// Adds the terms of both heads, times factor(head, row).
  template <class Factor>
  SEQPAR_DEVICE void add(Part& sum, Part& other, const Factor& factor) const {
    const float first[2] = {factor(0, 0), factor(0, 1)}, second[2] = {factor(1, 0), factor(1, 1)};
    if (decaysLittle(0) && decaysLittle(1)) {
      SEQPAR_UNROLL
      for (int n = 0; n < Half::kTiles8; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) sum[n][e] = first[e / 2] * sum[n][e] + second[e / 2] * other[n][e];
      }
      return;
    }
    scaleRows(sum, first[0], first[1]);
    scaleRows(other, second[0], second[1]);
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) sum[n][e] += other[n][e];
    }
  }
  /// Adds the products of a tile's elements and `part`, in this thread's rows.
  SEQPAR_DEVICE void addProducts(float (&sums)[2], const T* tile, const Part& part) const {
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; n += 2) {
      uint32_t words[4];
      loadTiles(words, tile, n, me);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = part[n + i / 2] + i % 2 * 2;
        sums[i % 2] += ptx::lowOf<T>(words[i]) * pair[0];
        sums[i % 2] += ptx::highOf<T>(words[i]) * pair[1];
      }
    }
  }
  /// Stores this warpgroup's sums of q times head kHead's term of dq from the state, without its decays, plus `terms`.
  template <int kHead>
  SEQPAR_DEVICE void sumRows(const Part& dq, float (&terms)[2]) const {
    float sums[2] = {0, 0};
    addProducts(sums, memory.q(chunk), dq);
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) terms[r] += times(task.scale * fromStart(kHead, r), sums[r]);
    storeRows(memory.rowTerms[me.group][kHead], terms);
  }
  /// Applies decays to dv from the state, and stores its sums with v, which equal those of k with dk.
  SEQPAR_DEVICE void finishKeys(Part& dv) const {
    float sums[2] = {0, 0};
    addProducts(sums, memory.v(chunk), dv);
    const float factors[2] = {toEnd(me.group, 0), toEnd(me.group, 1)};
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) sums[r] = times(factors[r], sums[r]);
    storeRows(memory.keyTerms[me.group], sums);
    if (decaysLittle(me.group)) {
      multiplyRows(dv, factors[0], factors[1]);
    } else {
      scaleRows(dv, factors[0], factors[1]);
    }
  }
  /// Stores the products of A and dA of each token with itself, without decays.
  SEQPAR_DEVICE void keepDiagonal(const Scores (&dA)[2], const Scores& a) const {
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) {
      Scores products;
      SEQPAR_UNROLL
      for (int n = 0; n < 4; ++n) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) products[n][e] = dA[h][n][e] * a[n][e];
      }
      Products::keepDiagonal(memory.own[h], products, task.scale, me);
    }
  }

  SEQPAR_DEVICE void clearUpper(Scores (&dA)[2], Scores& a) const {
    SEQPAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) {
        const bool upper = Products::distance(n, e, me) < 0;
        a[n][e] = upper ? 0.f : a[n][e];
        dA[0][n][e] = upper ? 0.f : dA[0][n][e];
        dA[1][n][e] = upper ? 0.f : dA[1][n][e];
      }
    }
  }
  /// For head kHead: stores A times its decays; multiplies dA by decays and input gates; adds the second head's to the
  /// first's; stores column sums, and returns row sums, of their product below the diagonal. Both are 0 above it.
  template <int kHead>
  SEQPAR_DEVICE void applyDecays(Scores (&dA)[2], const Scores& a, float (&rowSums)[2]) const {
    if (decaysLittle(kHead)) {
      applyDecays<kHead, true>(dA, a, rowSums);
    } else {
      applyDecays<kHead, false>(dA, a, rowSums);
    }
  }
  /// kLittle: decays are products of one factor of each token, which takes fewer instructions.
  template <int kHead, bool kLittle>
  SEQPAR_DEVICE void applyDecays(Scores (&dA)[2], const Scores& a, float (&rowSums)[2]) const {
    const float* queries = kLittle ? memory.factors[chunk % 2][kHead] : sumsOf(kHead);
    const float* keys = kLittle ? memory.inverses[chunk % 2][kHead] : queries;
    const float ofQueries[2] = {queries[me.row], queries[me.row + 8]};
    float columnSums[8];
    rowSums[0] = rowSums[1] = 0;
    SEQPAR_UNROLL
    for (int n = 0; n < 4; n += 2) {
      float tiles[2][4];
      SEQPAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        float columns[2], inputs[2] = {1, 1};
        ptx::loadPair(keys + Products::keyOf(n + i, 0, me), columns[0], columns[1]);
        if constexpr (kGated) {
          ptx::loadPair(memory.inputs[chunk % 2][kHead] + Products::keyOf(n + i, 0, me), inputs[0], inputs[1]);
        }
        columnSums[(n + i) * 2] = columnSums[(n + i) * 2 + 1] = 0;
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int tokens = Products::distance(n + i, e, me);
          float& own = dA[kHead][n + i][e];
          float decay, gated;
          if constexpr (kLittle) {
            decay = ofQueries[e / 2] * columns[e % 2];
            gated = ofQueries[e / 2] * (columns[e % 2] * inputs[e % 2]);
          } else {
            decay = tokens >= 0 ? task.scale * decayOf(ofQueries[e / 2] - columns[e % 2]) : 0.f;
            gated = decay * inputs[e % 2];
          }
          const auto decayed = [&](float by, float x) { return kLittle ? by * x : times(by, x); };
          tiles[i][e] = decayed(decay, a[n + i][e]);
          const float product = tokens != 0 && (kLittle || decay != 0) ? tiles[i][e] * own : 0.f;
          columnSums[(n + i) * 2 + e % 2] += product;
          rowSums[e / 2] += inputs[e % 2] * product;
          own = decayed(gated, own);
          if (kHead == 1) dA[0][n + i][e] += own;
        }
      }
      uint32_t words[4];
      packTiles<T>(words, tiles, 0);
      ptx::stmatrixX4(unitOf<kChunk>(memory.matrices[1 + kHead], me.matrixRows().row(me.warpIndex * 16),
                                     me.group * 4 + n + me.matrixRows().half()),
                      words);
    }
    memory.columnTerms[me.warpIndex][kHead][Products::keyOf(me.g / 2, me.g % 2, me)] =
        Products::sumOfLanes(columnSums, me);
  }
  /// Adds over the lanes of a row, and stores the sums of this warpgroup.
  SEQPAR_DEVICE void storeRows(float* to, const float (&sums)[2]) const {
    SEQPAR_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sum = sums[r] + ptx::shflXor(sums[r], 1);
      sum += ptx::shflXor(sum, 2);
      if (me.c == 0) to[me.row + r * 8] = sum;
    }
  }
  /// Writes terms of dq and dk, one row for both heads; they replace q and k.
  SEQPAR_DEVICE void writeTerms(const Part& dq, const Part& dk, int64_t token) const {
    Base::writeTerms(
        dq, dk, token, [&] { return (item.head / kPair - item.head) * task.dq.head; },
        [&] { return item.head / kPair; }, [&] { return task.heads / kPair; });
  }
  /// Sum of k dk without the input gate, except for the diagonal.
  SEQPAR_DEVICE float keySum(int h, int row) const {
    float sum = memory.keyTerms[h][row];
    SEQPAR_UNROLL
    for (int warp = 0; warp < 4; ++warp) sum += memory.columnTerms[warp][h][row];
    return sum;
  }
  /// Called by the last two warps, one per head.
  SEQPAR_DEVICE void writeGates(int64_t token) const {
    const int h = me.thread / 32 - (Memory::kWarps - 2);
    if (h < 0 || task.dGates.data == nullptr) return;
    float last = 0;
    SEQPAR_UNROLL
    for (const float carry : memory.carry[chunk & 1][h]) last += carry;
    float own[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = me.lane * 2 + i;
      const float gate = kGated ? memory.inputs[chunk % 2][h][row] : 1.f;
      own[i] = memory.rowTerms[0][h][row] + memory.rowTerms[1][h][row] - times(gate, keySum(h, row));
    }
    writeTokenGates<kWide>(own, last, memory.forgets[chunk % 2][h], task, item, token, me.lane, h);
  }
  /// Called by the two warps before those.
  SEQPAR_DEVICE void writeInputGates(int64_t token) const {
    const int h = me.thread / 32 - (Memory::kWarps - 4);
    if (h < 0 || h > 1) return;
    float sums[2];
    SEQPAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = me.lane * 2 + i;
      sums[i] = keySum(h, row) + memory.own[h][row];
    }
    writeInputs<kWide>(sums, task, item, token, me.lane, h);
  }
  using Memory = PairMemory<T>;
};

}  // namespace seqpar::attn::backward::sm90
