// A chunk's gradients for any channel decays, from images without factors above 1 (strong_images_sm90.h). The gates'
// terms q dq - k dk use the rounded images, so the terms of pairs that do not pass a gate cancel.
//
// The producers leave q and k unchanged, and the state's gradient E is not decayed.
#pragma once

#include "kernels/attn/linear/backward/strong_scores_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct StrongChannelConsumer : StrongScores<T> {
  using Base = StrongScores<T>;
  using Images = ChunkImages<T>;
  using Base::chunk, Base::me, Base::memory, Base::task;
  using Base::decayOf, Base::decays, Base::far, Base::loadQueriesAndKeys, Base::multiplyDecays, Base::near,
      Base::scales, Base::tile, Base::unit, Base::upperFar, Base::upperNear;
  using typename Base::Block, typename Base::Exponents, typename Base::Halves, typename Base::Strong;
  using typename Base::Part, typename Base::Products;

  SEQPAR_DEVICE void run() {
    const ChunkOperands<T> operands = this->operands();
    const int64_t token = this->token();
    Part dk, dq;
    float fromDA;
    {
      Part dv;
      Scores dA;
      multiplyValues(operands, dA, dk);
      fromDA = storeDA(operands, dA);
      backward::clear(dv);
      addKeys(operands, dv);
      Roles::syncConsumers();  // E is no longer read, and dA is stored
      this->storeBetween();
      Block own, other;
      this->multiplyOwn(own);
      if (!this->ownsDiagonal()) this->storePart(own);
      Roles::syncConsumers();
      if (this->ownsDiagonal()) this->addPart(own);
      this->multiplyOther(other);
      Roles::syncConsumers();  // the parts are added
      uint32_t rests[2][4];
      this->storeA(own, other, rests);
      warpgroup::fenceProxyAsync();
      Roles::syncConsumers();
      me = me.opaque();
      backward::clear(dq);
      warpgroup::arrive();
      Products::addValues(operands.a, operands.dOut, dv, me);
      Products::queriesOfState(operands, dq, me, true);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(dv);
      warpgroup::fenceOperand(dq);
      Roles::arriveStateRead();
      Roles::syncConsumers();  // A and, except for the last product of dv, dOut are no longer read
      this->storeBlocks(rests);
      warpgroup::fenceProxyAsync();
      Roles::syncConsumers();
      me = me.opaque();
      warpgroup::arrive();
      Products::addValues(operands.a, operands.dOut, dv, me);
      warpgroup::commit();
      warpgroup::wait<0>();
      warpgroup::fenceOperand(dv);
      Roles::awaitAdded();
      Rows(task.dvOut, this->item, token, this->item.keyBlock * task.dvOut.block + this->item.valueBlock * kBlock,
           this->item.values)
          .template writeThrough<T>(memory.dOut(chunk), dv, me);
    }
    GradientMatrices dA;
    loadDA(dA);
    Roles::syncConsumers();  // dA, A and the other values are no longer read: the gates' terms replace them
    finish({task.scale * powerOf2(-scales().keys), powerOf2(-scales().queries),
            powerOf2(-scales().queries - scales().keys), fromDA},
           dA, dq, dk, token);
  }

 private:
  /// dA, and dk from the state's gradient without decays.
  SEQPAR_DEVICE void multiplyValues(const ChunkOperands<T>& of, Scores& dA, Part& dk) const {
    warpgroup::arrive();
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, 8>(
        dA, Operand{of.dOut, kTilePanelBytes}, kChunk, Operand{of.v + me.group * 32 * kPanel}, kChunk, false);
    warpgroup::multiplyAll<T, Terms::AlongRows, Terms::AlongRows, 8>(
        dk, Operand{of.v, kTilePanelBytes}, kChunk, Operand{of.after + me.firstColumn * kPanel}, kBlock, false);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dA);
    warpgroup::fenceOperand(dk);
  }
  /// Stores dA's image in place of v. Returns the inverse of its scale.
  SEQPAR_DEVICE float storeDA(const ChunkOperands<T>& operands, Scores& dA) {
    Products::keepDiagonal(memory.own, dA, 1, me);
    Scores unused = {};
    Products::clearUpper(dA, unused, me);
    Images::measure(dA, memory, me);
    Roles::syncConsumers();  // v is no longer read
    const int exponent = Images::scaleOf(memory);
    typename Products::Words words;
    Products::packHalvesOf(words, dA, powerOf2(exponent));
    Products::store(operands.dA, words, me);
    return powerOf2(-exponent);
  }
  /// Adds keys, with their decays to the chunk's end, times the state's gradient to dv.
  SEQPAR_DEVICE void addKeys(const ChunkOperands<T>& operands, Part& dv) const {
    constexpr int kAtOnce = 2;
    const Operand after{me.columnsOf(operands.after, kMatrixPanel)};
    uint32_t keys[kAtOnce][4];
    SEQPAR_UNROLL
    for (int step = 0; step < kBlock / 16; ++step) {
      auto& own = keys[step % kAtOnce];
      if (step >= kAtOnce) warpgroup::wait<kAtOnce - 1>();
      Images::loadKeys(own, operands.k, step, me);
      Exponents decay;
      Strong::toEnd(decay, decays(), step * 2, me);
      Strong::raise(decay);
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        own[i] = ptx::pack<T>(Strong::template lowOf<T>(own, decay, i), Strong::template highOf<T>(own, decay, i));
      }
      warpgroup::arrive();
      warpgroup::multiplyStep<T, Terms::Rows>(dv, own, after, kBlock, step, true);
      warpgroup::commit();
    }
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dv);
  }

  /// dA of the warp's tokens with those of other tiles and of its own: left operands.
  struct GradientMatrices {
    Fragment near, far[2], own;
  };
  SEQPAR_DEVICE int neighbor() const { return tile() ^ 1; }
  SEQPAR_DEVICE int other() const { return upperFar() ? 0 : 2; }  ///< the first tile of the other half

  SEQPAR_DEVICE void loadDA(GradientMatrices& to) const {
    loadBlock(to.near, neighbor(), upperNear());
    loadBlock(to.far[0], other(), upperFar());
    loadBlock(to.far[1], other() + 1, upperFar());
    Fragment transposed;
    loadBlock(to.own, tile(), true);
    loadBlock(transposed, tile(), false);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) to.own[i] |= transposed[i];
  }
  /// The rows of the warp's tile; otherwise its columns, transposed.
  SEQPAR_DEVICE void loadBlock(Fragment& to, int with, bool rows) const {
    const T* dA = this->operands().dA;
    if (rows) {
      const ptx::MatrixRows own{me.lane};
      ptx::ldmatrixX4(to, unitOf<kChunk>(dA, own.row(tile() * kTileRows), with * 2 + own.half()));
    } else {
      const ptx::MatrixRowsAcross own{me.lane};
      ptx::ldmatrixX4Trans(to, unitOf<kChunk>(dA, own.row(with * kTileRows), tile() * 2 + own.half()));
    }
  }

  /// Factors of sums of products of images.
  struct Factors {
    float dq, dk, terms;
    float fromDA;  ///< in addition, of all
  };
  SEQPAR_DEVICE void finish(const Factors& by, const GradientMatrices& dA, Part& dq, Part& dk, int64_t token) {
    const Rows dqRows = this->rowsOf(task.dq, token), dkRows = this->rowsOf(task.dkOut, token);
    finishTiles<0>(by, dA, dq, dk, dqRows, dkRows);
    finishTiles<2>(by, dA, dq, dk, dqRows, dkRows);
    finishTiles<4>(by, dA, dq, dk, dqRows, dkRows);
    finishTiles<6>(by, dA, dq, dk, dqRows, dkRows);
    Roles::arriveRead();
    dqRows.writePut(memory.q(chunk), me);
    dkRows.writePut(memory.k(chunk), me);
    Roles::arriveDone(chunk);
  }

  /// For accumulator tiles n and n + 1, adds the terms of other tokens to the decayed terms of the states. Stores the
  /// gates' terms in place of v and dOut, dq and dk in place of q and k.
  template <int n>
  SEQPAR_DEVICE void finishTiles(const Factors& by, const GradientMatrices& dA, Part& dq, Part& dk, const Rows& dqRows,
                                 const Rows& dkRows) const {
    uint32_t qs[4], ks[4], x[4];
    loadQueriesAndKeys(qs, ks, n);
    Block terms;
    addStates<n>(dq, dk, terms, qs, ks);
    Exponents decay;
    Block gradient;
    {
      const Halves halves = Halves::between(*this, upperNear());
      decayOf(decay, halves, n, false);
      loadTiles(x, near(), n, me);
      backward::clear(gradient);
      addProducts(gradient, dA.near, near(), neighbor(), n);
      addPairs<n>(dq, dk, terms, by, gradient, x, decay, halves);
    }
    {
      const Halves halves = Halves::between(*this, upperFar());
      decayOf(decay, halves, n, true);
      loadTiles(x, far(), n, me);
      backward::clear(gradient);
      addProducts(gradient, dA.far[0], far(), other(), n);
      addProducts(gradient, dA.far[1], far(), other() + 1, n);
      addPairs<n>(dq, dk, terms, by, gradient, x, decay, halves);
    }
    SEQPAR_ROLLED
    for (int h = 8; h > 0; h /= 2) {
      const Halves halves = Halves::within(*this, h);
      decayOf(decay, halves, n, false);
      multiplyDecays(x, qs, ks, decay, halves);
      Fragment between;
      SEQPAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int t = me.g + i % 2 * 8, s = me.c * 2 + i / 2 * 8;
        between[i] = dA.own[i] & ((differAt(t, s, h) ? 0xffffu : 0u) | (differAt(t, s + 1, h) ? 0xffff0000u : 0u));
      }
      backward::clear(gradient);
      SEQPAR_UNROLL
      for (int m = 0; m < 2; ++m) {
        ptx::mmaM16N8K16<Fp16>(gradient[m], between, ptx::movmatrixTrans(x[m * 2]), ptx::movmatrixTrans(x[m * 2 + 1]));
      }
      addPairs<n>(dq, dk, terms, by, gradient, x, decay, halves);
    }
    addOwn<n>(dq, dk, qs, ks);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int tile8 = n + i / 2, r = i % 2;
      ptx::storePair(memory.terms(chunk, me.group) + pairIndex(me.row + r * 8, tile8, me), terms[i / 2][r * 2],
                     terms[i / 2][r * 2 + 1]);
    }
    dqRows.template put<T, n>(memory.q(chunk), dq, me);
    dkRows.template put<T, n>(memory.k(chunk), dk, me);
  }
  template <int n>
  SEQPAR_DEVICE void addStates(Part& dq, Part& dk, Block& terms, const uint32_t (&qs)[4],
                               const uint32_t (&ks)[4]) const {
    Exponents decay;
    Strong::fromStart(decay, decays(), unit(n), me);
    Strong::raise(decay);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      float *own = dq[n + i / 2] + i % 2 * 2, *term = terms[i / 2] + i % 2 * 2;
      const float* factor = decay[i / 2] + i % 2 * 2;
      own[0] = task.scale * times(factor[0], own[0]);
      own[1] = task.scale * times(factor[1], own[1]);
      term[0] = ptx::lowOf<T>(qs[i]) * own[0];
      term[1] = ptx::highOf<T>(qs[i]) * own[1];
    }
    Strong::toEnd(decay, decays(), unit(n), me);
    Strong::raise(decay);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      float *own = dk[n + i / 2] + i % 2 * 2, *term = terms[i / 2] + i % 2 * 2;
      const float* factor = decay[i / 2] + i % 2 * 2;
      own[0] = times(factor[0], own[0]);
      own[1] = times(factor[1], own[1]);
      term[0] -= ptx::lowOf<T>(ks[i]) * own[0];
      term[1] -= ptx::highOf<T>(ks[i]) * own[1];
    }
  }
  /// gradient += dA times x of 16 other tokens.
  SEQPAR_DEVICE void addProducts(Block& gradient, const Fragment& matrix, const Fp16* x, int with, int n) const {
    const int row = with * kTileRows + me.lane % 16;
    Fragment right;
    ptx::ldmatrixX4Trans(right, unitOf<kChunk>(x, row, unit(n) + me.lane / 16));
    multiplyPair<Fp16>(gradient[0], gradient[1], matrix, right);
  }
  template <int n>
  SEQPAR_DEVICE static void addPairs(Part& dq, Part& dk, Block& terms, const Factors& by, const Block& gradient,
                                     const uint32_t (&x)[4], const Exponents& decay, const Halves& halves) {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int m = i / 2, r = i % 2;
      const float values[2] = {ptx::lowOf<Fp16>(x[i]), ptx::highOf<Fp16>(x[i])};
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float product = by.fromDA * gradient[m][r * 2 + e], own = decay[m][r * 2 + e] * product,
                    term = by.terms * (values[e] * product);
        if (halves.upper[r]) {
          dq[n + m][r * 2 + e] += by.dq * own;
          terms[m][r * 2 + e] += term;
        } else {
          dk[n + m][r * 2 + e] += by.dk * own;
          terms[m][r * 2 + e] -= term;
        }
      }
    }
  }
  /// Terms of a token with itself.
  template <int n>
  SEQPAR_DEVICE void addOwn(Part& dq, Part& dk, const uint32_t (&qs)[4], const uint32_t (&ks)[4]) const {
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float own = task.scale * memory.own[me.row + i % 2 * 8];
      float *ofQ = dq[n + i / 2] + i % 2 * 2, *ofK = dk[n + i / 2] + i % 2 * 2;
      ofQ[0] += own * ptx::lowOf<T>(ks[i]);
      ofQ[1] += own * ptx::highOf<T>(ks[i]);
      ofK[0] += own * ptx::lowOf<T>(qs[i]);
      ofK[1] += own * ptx::highOf<T>(qs[i]);
    }
  }
};

}  // namespace seqpar::attn::backward::sm90
