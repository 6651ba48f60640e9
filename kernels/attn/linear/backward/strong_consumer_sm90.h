// A chunk's gradients for any channel decays, from images without factors above 1 (strong_images_sm90.h). The gates'
// terms are q dq - k dk: pairs that do not pass a gate cancel up to the remainders' rounding.
//
// The producers leave q and k unchanged, and the state's gradient E is not decayed. Terms of tokens of the same 16 come
// first, before the state is needed; then its image is overwritten by those of queries and keys, and these by A and the
// decayed keys for dv.
#pragma once

#include "kernels/attn/linear/backward/strong_scores_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// kTerms: targets may have scales. kHeads: as ChunkConsumer's.
template <class T, bool kTerms, int kHeads = 1>
struct StrongChannelConsumer : StrongScores<T, kHeads> {
  using Base = StrongScores<T, kHeads>;
  using Base::addPart, Base::decays, Base::multiplyOther, Base::multiplyWithItself, Base::ownsDiagonal, Base::restOfX,
      Base::storePart, Base::storeX, Base::tile, Base::unit, Base::x;
  using Base::chunk, Base::me, Base::memory, Base::task;
  using typename Base::Distance, typename Base::Exponents, typename Base::Halves, typename Base::Strong;
  using typename Base::Others, typename Base::Part, typename Base::Products;
  using Scores = ScoresOf<kHeads>;

  SEQPAR_DEVICE void run() {
    const int64_t token = this->token();
    Block ofA = {};
    Others otherOfA = {};
    Part dq, dk;
    {
      Scores dA;
      multiplyValues(dA, dk);
      storeDA(dA, dk);
    }
    decayKeys(dk);
    this->sync();
    backward::clear(dq);
    addWithin(ofA, dq, dk);
    Roles::awaitAdded();
    me = me.opaque();
    addState(dq);
    this->sync();  // S is no longer read
    addBetween<Distance::Far>(otherOfA, dq, dk);
    this->sync();
    addBetween<Distance::Near>(otherOfA, dq, dk);
    this->sync();  // nor are x and dA
    if (!ownsDiagonal()) storePart(ofA);
    Part terms;
    finish(terms, dq, dk, token);
    Roles::syncConsumers();
    if (kHeads == 1 && ownsDiagonal()) addPart(ofA);
    this->storeA(ofA, otherOfA);
    storeTerms(terms);
    warpgroup::fenceProxyAsync();
    Roles::syncConsumers();
    writeValues(token);
    Roles::arriveDone(chunk);
  }

 private:
  /// dA, and dk, which storeDA() completes, from the state's gradient without decays.
  SEQPAR_DEVICE void multiplyValues(Scores& dA, Part& dk) const {
    T* const values = Products::ofHead(memory.v(chunk), me);
    const Operand dOut{Products::ofHead(memory.dOut(chunk), me), kTilePanelBytes}, v{values, kTilePanelBytes};
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, Products::kSteps>(
        dA, dOut, kChunk, Operand{values + Products::firstUnit(me) * 8 * kPanel}, kChunk, false);
    warpgroup::commit();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, Products::kSteps>(
        dk, v, kChunk, Operand{memory.after + me.firstColumn * kPanel}, kBlock, false);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dA);
  }
  /// Applies the keys' decays to the chunk's end.
  SEQPAR_DEVICE void decayKeys(Part& dk) const {
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; n += 2) {
      Exponents decay;
      Strong::toEnd(decay, decays(), unit(n), me);
      Strong::raise(decay);
      SEQPAR_UNROLL
      for (int m = 0; m < 2; ++m) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) dk[n + m][e] = times(decay[m][e], dk[n + m][e]);
      }
    }
  }
  /// Adds dOut times the state, with the queries' decays from the chunk's start.
  SEQPAR_DEVICE void addState(Part& dq) const {
    constexpr int kTogether = 4;  // accumulator tiles; all would exceed the registers
    SEQPAR_UNROLL
    for (int first = 0; first < Half::kTiles8; first += kTogether) {
      float terms[kTogether][4];
      warpgroup::arrive();
      warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, Products::kSteps>(
          terms, Operand{Products::ofHead(memory.dOut(chunk), me), kTilePanelBytes}, kChunk,
          Operand{memory.before + (me.firstColumn + first * 8) * kPanel}, kBlock, false);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(terms);
      SEQPAR_UNROLL
      for (int n = 0; n < kTogether; n += 2) {
        Exponents decay;
        Strong::fromStart(decay, decays(), unit(first + n), me);
        Strong::raise(decay);
        SEQPAR_UNROLL
        for (int m = 0; m < 2; ++m) {
          SEQPAR_UNROLL
          for (int e = 0; e < 4; ++e) dq[first + n + m][e] += task.scale * times(decay[m][e], terms[n + m][e]);
        }
      }
    }
  }

  SEQPAR_DEVICE float* own() const { return memory.own[Base::Memory::headOf(me)]; }
  SEQPAR_DEVICE Bf16* matrixDA() const { return reinterpret_cast<Bf16*>(Products::ofHead(memory.v(chunk), me)); }
  SEQPAR_DEVICE Bf16* restOfDA() const {
    return kHeads == 1 ? matrixDA() + kTilePanel : reinterpret_cast<Bf16*>(memory.afterAfter(me));
  }
  /// Stores dA, times task.scale, in place of v, after dk is complete.
  SEQPAR_DEVICE void storeDA(Scores& dA, Part& dk) const {
    Products::keepDiagonal(own(), dA, task.scale, me);
    Scores unused = {};
    Products::clearUpper(dA, unused, me);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dk);
    this->sync();  // v is no longer read
    SEQPAR_UNROLL
    for (int n = 0; n < 4 * kHeads; n += 2) {
      Split own;
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = dA[n + i / 2] + i % 2 * 2;
        own.set(i, task.scale * pair[0], task.scale * pair[1]);
      }
      const int row = me.matrixRows().row(me.warpIndex * 16), at = Products::firstUnit(me) + n + me.matrixRows().half();
      ptx::stmatrixX4(unitOf<kChunk>(matrixDA(), row, at), own.words);
      ptx::stmatrixX4(unitOf<kChunk>(restOfDA(), row, at), own.rests);
    }
  }
  /// The rows of the warp's tile in dA, and the columns of a tile `with`; otherwise those of its transpose.
  SEQPAR_DEVICE void loadBlock(Split& to, int with, bool rows) const {
    if (rows) {
      const ptx::MatrixRows own{me.lane};
      const int row = own.row(tile() * kTileRows), at = with * 2 + own.half();
      to.load(unitOf<kChunk>(matrixDA(), row, at), unitOf<kChunk>(restOfDA(), row, at));
    } else {
      const ptx::MatrixRowsAcross own{me.lane};
      const int row = own.row(with * kTileRows), at = tile() * 2 + own.half();
      to.loadTransposed(unitOf<kChunk>(matrixDA(), row, at), unitOf<kChunk>(restOfDA(), row, at));
    }
  }

  /// Adds the terms of pairs of tokens of the warp's tile to A, dq and dk.
  SEQPAR_DEVICE void addWithin(Block& a, Part& dq, Part& dk) const {
    this->addSelf(a);
    Split dA, transposed;
    loadBlock(dA, tile(), true);
    loadBlock(transposed, tile(), false);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      dA.words[i] |= transposed.words[i];
      dA.rests[i] |= transposed.rests[i];
    }
    SEQPAR_ROLLED
    for (int h = 8; h > 0; h /= 2) {
      const Halves halves(h, me);
      Split between;
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        between.words[i] = dA.words[i] & halves.maskOf(i);
        between.rests[i] = dA.rests[i] & halves.maskOf(i);
      }
      Block product = {};
      SEQPAR_UNROLL
      for (int n = 0; n < Half::kTiles8; n += 2) {
        Split own, right;
        Exponents decay;
        this->multiplyWithin(own, decay, halves, n);
        multiplyWithItself(product, own);
        SEQPAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          right.words[i] = ptx::movmatrixTrans(own.words[i]);
          right.rests[i] = ptx::movmatrixTrans(own.rests[i]);
        }
        Block gradient = {};
        multiplySplit(gradient, between, right);
        SEQPAR_UNROLL
        for (int m = 0; m < 2; ++m) {
          SEQPAR_UNROLL
          for (int e = 0; e < 4; ++e) {
            const float term = decay[m][e] * gradient[m][e];
            if (halves.upper[e / 2]) {  // not a reference to either, which would be in memory
              dq[n + m][e] += term;
            } else {
              dk[n + m][e] += term;
            }
          }
        }
      }
      this->take(a, product, [h](int t, int s) { return t > s && differAt(t, s, h); });
    }
  }

  /// Adds the terms of pairs of tokens of different tiles.
  template <Distance kDistance>
  SEQPAR_DEVICE void addBetween(Others& a, Part& dq, Part& dk) const {
    storeX(kDistance);
    this->sync();
    multiplyOther(a, kDistance);
    if (this->isUpper(kDistance)) {
      addProducts<kDistance>(dq, true);
    } else {
      addProducts<kDistance>(dk, false);
    }
  }
  template <Distance kDistance>
  SEQPAR_DEVICE void addProducts(Part& to, bool isUpper) const {
    constexpr int kBlocks = kDistance == Distance::Near ? 1 : 2;
    const int with = kDistance == Distance::Near ? tile() ^ 1 : isUpper ? 0 : 2;
    Split dA[kBlocks];
    SEQPAR_UNROLL
    for (int i = 0; i < kBlocks; ++i) loadBlock(dA[i], with + i, isUpper);
    Fragment ones;
    this->onesToBorder(ones, kDistance);
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; n += 2) {
      Block gradient = {};
      SEQPAR_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        const int row = (with + i) * kTileRows + me.lane % 16, at = unit(n) + me.lane / 16;
        Split right;
        right.loadTransposed(unitOf<kChunk>(x(), row, at), unitOf<kChunk>(restOfX(), row, at));
        multiplySplit(gradient, dA[i], right);
      }
      Exponents decay;
      this->decayToBorder(decay, kDistance, ones, n);
      SEQPAR_UNROLL
      for (int m = 0; m < 2; ++m) {
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) to[n + m][e] += decay[m][e] * gradient[m][e];
      }
    }
  }

  SEQPAR_DEVICE bool scalesKeys() const { return kTerms && task.dq.scales != nullptr; }
  /// Keys with their decays to the chunk's end.
  SEQPAR_DEVICE T* decayedKeys() const { return memory.before; }
  /// Writes dq and dk, and determines the gates' terms and the decayed keys.
  SEQPAR_DEVICE void finish(Part& terms, Part& dq, Part& dk, int64_t token) const {
    const Rows dqRows = this->rowsOf(task.dq, token), dkRows = this->rowsOf(task.dkOut, token);
    finishTiles<0>(terms, dq, dk, dqRows, dkRows);
    finishTiles<2>(terms, dq, dk, dqRows, dkRows);
    finishTiles<4>(terms, dq, dk, dqRows, dkRows);
    finishTiles<6>(terms, dq, dk, dqRows, dkRows);
    if (scalesKeys()) {
      this->writeScaledKeys(dqRows, dkRows, dq, dk, token);
    } else {
      dqRows.writePut(memory.q(chunk), me);
      dkRows.writePut(memory.k(chunk), me);
    }
  }
  /// For accumulator tiles n and n + 1. dq and dk replace q and k.
  template <int n>
  SEQPAR_DEVICE void finishTiles(Part& terms, Part& dq, Part& dk, const Rows& dqRows, const Rows& dkRows) const {
    Fragment qs, ks, keys;
    loadTiles(qs, memory.q(chunk), n, me);
    loadTiles(ks, memory.k(chunk), n, me);
    Exponents decay;
    Strong::toEnd(decay, decays(), unit(n), me);
    Strong::raise(decay);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      keys[i] = ptx::pack<T>(Strong::template lowOf<T>(ks, decay, i), Strong::template highOf<T>(ks, decay, i));
      const float ofOwn = own()[me.row + i % 2 * 8];
      const float q[2] = {ptx::lowOf<T>(qs[i]), ptx::highOf<T>(qs[i])},
                  k[2] = {ptx::lowOf<T>(ks[i]), ptx::highOf<T>(ks[i])};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int at = i % 2 * 2 + e;
        float &ofQ = dq[n + i / 2][at], &ofK = dk[n + i / 2][at];
        terms[n + i / 2][at] = q[e] * ofQ - k[e] * ofK;
        ofQ += ofOwn * k[e];
        ofK += ofOwn * q[e];
      }
    }
    storeTiles(decayedKeys(), n, keys, me);
    if (scalesKeys()) return;
    dqRows.template put<T, n>(memory.q(chunk), dq, me);
    dkRows.template put<T, n>(memory.k(chunk), dk, me);
  }
  SEQPAR_DEVICE void storeTerms(const Part& terms) const {
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; ++n) {
      SEQPAR_UNROLL
      for (int r = 0; r < 2; ++r) {
        ptx::storePair(memory.strongTerms(chunk, me.group) + pairIndex(me.row + r * 8, n, me), terms[n][r * 2],
                       terms[n][r * 2 + 1]);
      }
    }
  }

  /// Computes and writes dv.
  SEQPAR_DEVICE void writeValues(int64_t token) {
    Part dv;
    me = me.opaque();
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::Rows, Products::kSteps>(
        dv, Operand{Products::ofHead(decayedKeys(), me), kTilePanelBytes}, kChunk,
        Operand{Products::stateColumns(memory.after, me)}, kBlock, false);
    Products::addValues(this->matrixA(), memory.dOut(chunk), dv, me);
    Products::addValues(this->restOfA(), memory.dOut(chunk), dv, me);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dv);
    Roles::arriveStateRead();
    Roles::arriveRead();
    this->template writeValuesThrough<kTerms>(memory.v(chunk), dv, token);
  }
};

}  // namespace seqpar::attn::backward::sm90
