// A chunk's gradients with channel decays, if no channel's decay over the chunk is less than 2^kLeastTotal: gradients
// without decays, for q times the decay p from the chunk's start, and k divided by it; the state's gradient decays
// before the chunk's terms are added.
//
// The gradients of the gates' logarithms are those of the state before the chunk, S * E summed over its rows, less q dq
// - k dk of earlier tokens. q, k, S and dA are rounded; but the terms of two tokens, or of a token and S, use the same
// rounded values on both sides of that difference, so terms that do not pass the gate cancel exactly. With the state
// after the chunk, which is rounded again, they would not.
#pragma once

#include "kernels/attn/linear/backward/channel_producer_sm90.h"
#include "kernels/attn/linear/backward/terms_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// kTerms: targets may have scales. kHeads: as ChunkConsumer's.
template <class T, bool kTerms, int kHeads = 1>
struct ChannelConsumer : TermsConsumer<T, ChannelMemory<T, kHeads>, kHeads> {
  using Base = TermsConsumer<T, ChannelMemory<T, kHeads>, kHeads>;
  using Decays = ChannelDecays<T>;
  using Base::chunk, Base::me, Base::memory, Base::task;
  using typename Base::Part, typename Base::Products;

  SEQPAR_DEVICE void run() {
    if constexpr (ChannelProducer<T>::kHasImages) {
      if (ptx::uniform(scales().fit) != 0) return runImages();
    }
    runAsT();
  }

 protected:
  using Images = ChunkImages<T, kHeads>;
  using Scores = ScoresOf<kHeads>;

  SEQPAR_DEVICE void runAsT() {
    const ChunkOperands<T> operands = this->operands();
    const int64_t token = this->token();
    Part dq, dk, dv;
    typename Products::Words restOfDA, restOfA;
    {
      Scores dA, a;
      Products::first(operands, dA, a, dk, me);
      Products::queriesOfState(operands, dq, me);
      warpgroup::commit();
      warpgroup::wait<1>();
      warpgroup::fenceOperand(dA);
      warpgroup::fenceOperand(a);
      warpgroup::fenceOperand(dk);
      Products::keepDiagonal(own(), dA, 1, me);
      Products::clearUpper(dA, a, me);
      typename Products::Words ofDA, ofA;
      Products::pack(ofDA, restOfDA, dA);
      Products::pack(ofA, restOfA, a);
      this->sync();  // v is no longer read
      Products::store(operands.dA, ofDA, me);
      Products::store(operands.a, ofA, me);
    }
    warpgroup::fenceProxyAsync();
    this->sync();
    me = me.opaque();
    warpgroup::arrive();
    Products::second(operands, dq, dk, dv, me);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dq);
    warpgroup::fenceOperand(dk);
    warpgroup::fenceOperand(dv);
    Roles::arriveStateRead();
    this->sync();  // nor are the matrices
    Products::store(operands.dA, restOfDA, me);
    Products::store(operands.a, restOfA, me);
    warpgroup::fenceProxyAsync();
    this->sync();
    me = me.opaque();
    warpgroup::arrive();
    Products::third(operands, dq, dk, dv, me);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dv);
    finishProducts(dq, dk, dv, token);
    finishAsT(dq, dk, token);
  }

  /// The variant with images: dq and dk have the images' scales until they are stored. The remainder of A is stored in
  /// place of the state's gradient.
  SEQPAR_DEVICE void runImages() {
    const ChunkOperands<T> operands = this->operands();
    const int64_t token = this->token();
    Part dq, dk, dv;
    typename Products::Words rests;
    int ofDA;
    {
      Scores dA, a;
      Products::template first<Fp16>(operands, dA, a, dk, me);
      warpgroup::wait<0>();
      warpgroup::fenceOperand(dA);
      warpgroup::fenceOperand(a);
      warpgroup::fenceOperand(dk);
      Products::keepDiagonal(own(), dA, 1, me);
      Products::clearUpper(dA, a, me);
      typename Images::Smallest smallest;
      Images::measure(dA, smallest, memory, me);
      times(a, powerOf2(-scales().queries - scales().keys));
      typename Products::Words words;
      Products::pack(words, rests, a);
      this->sync();  // v is no longer read
      Products::store(operands.a, words, me);
      ofDA = Images::scaleOf(smallest, memory, me);
      Products::packHalvesOf(words, dA, powerOf2(ofDA));
      Products::store(operands.dA, words, me);
    }
    warpgroup::fenceProxyAsync();
    backward::clear(dv);
    addKeys(operands, dv);
    warpgroup::fenceOperand(dv);
    backward::clear(dq);
    warpgroup::arrive();
    Products::queriesOfState(operands, dq, me, true);
    warpgroup::commit();
    times(dk, powerOf2(ofDA + scales().queries));
    this->sync();  // nor is the state's gradient
    me = me.opaque();
    warpgroup::arrive();
    Products::addValues(operands.a, operands.dOut, dv, me);
    Products::addImagesOfQueries(dk, operands, me);
    warpgroup::commit();
    Products::store(memory.after, rests, me);
    warpgroup::fenceProxyAsync();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dq);
    Roles::arriveStateRead();
    times(dq, powerOf2(ofDA + scales().keys));
    this->sync();
    me = me.opaque();
    warpgroup::arrive();
    Products::addValues(memory.after, operands.dOut, dv, me);
    Products::addImagesOfKeys(dq, operands, me);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dv);
    finishProducts(dq, dk, dv, token);
    finishImages(dq, dk, ofDA, token);
  }
  /// Converts complete accumulators to gradients and stores them.
  SEQPAR_DEVICE void finishAsT(Part& dq, Part& dk, int64_t token) {
    finish<T>({1, task.scale, 1, {own()[me.row], own()[me.row + 8]}}, dq, dk, token);
  }
  SEQPAR_DEVICE void finishImages(Part& dq, Part& dk, int ofDA, int64_t token) {
    const int ofQueries = scales().queries, ofKeys = scales().keys;
    const float ofOwn = powerOf2(ofDA);
    finish<Fp16>({powerOf2(-ofDA - ofQueries - ofKeys),
                  task.scale * powerOf2(-ofDA - ofKeys),
                  powerOf2(-ofDA - ofQueries),
                  {ofOwn * own()[me.row], ofOwn * own()[me.row + 8]}},
                 dq, dk, token);
  }
  SEQPAR_DEVICE bool scalesKeys() const { return kTerms && task.dq.scales != nullptr; }
  /// Stores dv, which is complete; afterwards dq and dk are complete, too.
  SEQPAR_DEVICE void finishProducts(Part& dq, Part& dk, const Part& dv, int64_t token) {
    Roles::awaitAdded();
    Roles::arriveRead();
    this->template writeValuesThrough<kTerms>(memory.dOut(chunk), dv, token);
    me = me.opaque();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dq);
    warpgroup::fenceOperand(dk);
    Roles::syncConsumers();  // nor are the matrices, or q and k by other warps; the gates' terms replace v and dOut
  }
  SEQPAR_DEVICE float* own() const { return memory.own[Base::Memory::headOf(me)]; }
  SEQPAR_DEVICE const ImageScales& scales() const { return memory.images[chunk % 2][Base::Memory::headOf(me)]; }
  /// Adds keys times the state's gradient to dv; afterwards all products are complete.
  SEQPAR_DEVICE void addKeys(const ChunkOperands<T>& operands, Part& dv) const {
    constexpr int kAtOnce = 2;
    const float factor = powerOf2(-scales().keys);
    const Operand after{Products::stateColumns(operands.after, me)};
    const T* const ofHead = Products::ofHead(operands.k, me);
    uint32_t keys[kAtOnce][4], next[4];
    Images::loadKeys(next, ofHead, 0, me);
    SEQPAR_UNROLL
    for (int step = 0; step < Products::kSteps; ++step) {
      auto& own = keys[step % kAtOnce];
      if (step >= kAtOnce) warpgroup::wait<kAtOnce - 1>();
      Images::convertKeys(own, next, factor);
      if (step + 1 < Products::kSteps) Images::loadKeys(next, ofHead, step + 1, me);
      warpgroup::arrive();
      warpgroup::multiplyStep<T, Terms::Rows>(dv, own, after, kBlock, step, true);
      warpgroup::commit();
    }
    warpgroup::wait<0>();
  }
  template <int N>
  SEQPAR_DEVICE static void times(float (&x)[N][4], float factor) {
    SEQPAR_UNROLL
    for (int n = 0; n < N; ++n) {
      SEQPAR_UNROLL
      for (int e = 0; e < 4; ++e) x[n][e] *= factor;
    }
  }

  /// Factors that convert accumulators to gradients.
  struct Factors {
    float terms, dq, dk;
    float own[2];  ///< diagonal (s = t) term
  };
  template <class Image>
  SEQPAR_DEVICE void finish(const Factors& by, Part& dq, Part& dk, int64_t token) {
    const Rows dqRows = this->rowsOf(task.dq, token), dkRows = this->rowsOf(task.dkOut, token);
    finishTiles<Image, 0>(dq, dk, by, dqRows, dkRows);
    finishTiles<Image, 2>(dq, dk, by, dqRows, dkRows);
    finishTiles<Image, 4>(dq, dk, by, dqRows, dkRows);
    finishTiles<Image, 6>(dq, dk, by, dqRows, dkRows);
    if (scalesKeys()) {
      this->writeScaledKeys(dqRows, dkRows, dq, dk, token);
    } else {
      dqRows.writePut(memory.q(chunk), me);
      dkRows.writePut(memory.k(chunk), me);
    }
    Roles::arriveDone(chunk);
  }
  /// For accumulator tiles n and n + 1: stores the gates' terms in place of v and dOut; then adds the diagonal terms
  /// and decays of dq and dk, which replace q and k.
  template <class Image, int n>
  SEQPAR_DEVICE void finishTiles(Part& dq, Part& dk, const Factors& by, const Rows& dqRows, const Rows& dkRows) const {
    uint32_t qs[4], ks[4], sums[4];
    loadTiles(qs, memory.q(chunk), n, me);
    loadTiles(ks, memory.k(chunk), n, me);
    memory.decays.load(sums, chunk, n, me);
    SEQPAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int tile = n + i / 2, r = i % 2;
      const float qPair[2] = {ptx::lowOf<Image>(qs[i]), ptx::highOf<Image>(qs[i])},
                  kPair[2] = {ptx::lowOf<Image>(ks[i]), ptx::highOf<Image>(ks[i])},
                  p[2] = {ptx::ex2ApproxOfDecay(Decays::lowOf(sums[i])),
                          ptx::ex2ApproxOfDecay(Decays::highOf(sums[i]))};
      float inverses[2];
      Decays::invert(inverses, p[0], p[1]);
      float &qLow = dq[tile][r * 2], &kLow = dk[tile][r * 2], &qHigh = dq[tile][r * 2 + 1],
            &kHigh = dk[tile][r * 2 + 1];
      ptx::storePair(memory.terms(chunk, me.group) + pairIndex(me.row + r * 8, tile, me),
                     by.terms * (qPair[0] * qLow - kPair[0] * kLow), by.terms * (qPair[1] * qHigh - kPair[1] * kHigh));
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float &q1 = e == 0 ? qLow : qHigh, &k1 = e == 0 ? kLow : kHigh;
        q1 = by.dq * p[e] * (q1 + by.own[r] * kPair[e]);
        k1 = by.dk * inverses[e] * (k1 + by.own[r] * qPair[e]);
      }
    }
    if (scalesKeys()) return;  // they need all of a row's elements
    dqRows.template put<T, n>(memory.q(chunk), dq, me);
    dkRows.template put<T, n>(memory.k(chunk), dk, me);
  }
};

}  // namespace seqpar::attn::backward::sm90
