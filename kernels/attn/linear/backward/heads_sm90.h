// A chunk's gradients of two short heads with channel decays (channel_sm90.h): each consumer warpgroup computes those
// of one head, whose matrices A and dA would exceed its registers at once. A is stored with its remainder before dA is
// complete, after the states, where each head has space for a matrix. Segments of bf16 with a chunk that has no images
// are left to the kernel for strong decays: both variants in one kernel would need more registers than there are.
#pragma once

#include "kernels/attn/linear/backward/channel_sm90.h"

namespace seqpar::attn::backward::sm90 {

template <class T>
struct TwoHeadsConsumer : ChannelConsumer<T, false, kPair> {
  using Base = ChannelConsumer<T, false, kPair>;
  using Base::chunk, Base::me, Base::memory, Base::own, Base::scales, Base::times;
  using typename Base::Images, typename Base::Part, typename Base::Products, typename Base::Scores;

  SEQPAR_DEVICE void run() {
    if constexpr (ChannelProducer<T, kPair>::kHasImages) {
      runImages();
    } else {
      runAsT();
    }
  }

 private:
  SEQPAR_DEVICE T* restOfA() const { return memory.afterAfter(me); }

  /// Stores A and its remainder; computes dA, without its upper part, and dk from the state's gradient. Afterwards the
  /// warp no longer reads v. `exponent`: A is divided by this power of 2.
  template <class Image>
  SEQPAR_DEVICE void computeMatrices(const ChunkOperands<T>& operands, Scores& dA, Part& dk, int exponent) const {
    Scores a;
    Products::template scores<Image>(operands, a, me);
    Products::ofValues(operands, dA, dk, me);
    warpgroup::wait<0>();
    warpgroup::fenceOperand(a);
    warpgroup::fenceOperand(dA);
    warpgroup::fenceOperand(dk);
    times(a, powerOf2(-exponent));
    Products::clearAbove(a, 1, me);
    typename Products::Words words, rests;
    Products::pack(words, rests, a);
    Products::store(operands.a, words, me);
    Products::store(restOfA(), rests, me);
    Products::keepDiagonal(own(), dA, 1, me);
    Products::clearAbove(dA, 0, me);
  }
  SEQPAR_DEVICE void addValues(const ChunkOperands<T>& operands, Part& dv) const {
    Products::addValues(operands.a, operands.dOut, dv, me);
    Products::addValues(restOfA(), operands.dOut, dv, me);
  }

  SEQPAR_DEVICE void runAsT() {
    const ChunkOperands<T> operands = this->operands();
    const int64_t token = this->token();
    Part dq, dk, dv;
    typename Products::Words rests;
    {
      Scores dA;
      computeMatrices<T>(operands, dA, dk, 0);
      typename Products::Words words;
      Products::pack(words, rests, dA);
      this->sync();  // v is no longer read
      Products::store(operands.dA, words, me);
    }
    warpgroup::fenceProxyAsync();
    this->sync();
    me = me.opaque();
    warpgroup::arrive();
    Products::keysOfState(operands, dv, me);
    addValues(operands, dv);
    Products::queriesOfState(operands, dq, me);
    addGradients<T>(operands, dq, dk);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::fenceOperand(dq);
    warpgroup::fenceOperand(dk);
    warpgroup::fenceOperand(dv);
    Roles::arriveStateRead();
    this->sync();  // nor is dA
    Products::store(operands.dA, rests, me);
    warpgroup::fenceProxyAsync();
    this->sync();
    me = me.opaque();
    warpgroup::arrive();
    addGradients<T>(operands, dq, dk);
    warpgroup::commit();
    this->finishProducts(dq, dk, dv, token);
    this->finishAsT(dq, dk, token);
  }
  template <class Image>
  SEQPAR_DEVICE void addGradients(const ChunkOperands<T>& operands, Part& dq, Part& dk) const {
    Products::template addImagesOfKeys<Image>(dq, operands, me);
    Products::template addImagesOfQueries<Image>(dk, operands, me);
  }

  /// The variant with images: dq and dk have the images' scales until they are stored.
  SEQPAR_DEVICE void runImages() {
    const ChunkOperands<T> operands = this->operands();
    const int64_t token = this->token();
    Part dq, dk, dv;
    int ofDA;
    {
      Scores dA;
      computeMatrices<Fp16>(operands, dA, dk, scales().queries + scales().keys);
      typename Images::Smallest smallest;
      Images::measure(dA, smallest, memory, me);
      this->sync();  // v is no longer read
      ofDA = Images::scaleOf(smallest, memory, me);
      typename Products::Words words;
      Products::packHalvesOf(words, dA, powerOf2(ofDA));
      Products::store(operands.dA, words, me);
    }
    times(dk, powerOf2(ofDA + scales().queries));
    warpgroup::fenceOperand(dk);
    warpgroup::fenceProxyAsync();
    backward::clear(dv);
    this->addKeys(operands, dv);
    warpgroup::fenceOperand(dv);
    backward::clear(dq);
    warpgroup::arrive();
    Products::queriesOfState(operands, dq, me, true);
    warpgroup::commit();
    this->sync();
    me = me.opaque();
    warpgroup::arrive();
    addValues(operands, dv);
    Products::addImagesOfQueries(dk, operands, me);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dq);
    Roles::arriveStateRead();
    times(dq, powerOf2(ofDA + scales().keys));
    warpgroup::arrive();
    Products::addImagesOfKeys(dq, operands, me);
    warpgroup::commit();
    warpgroup::wait<1>();
    warpgroup::fenceOperand(dv);
    this->finishProducts(dq, dk, dv, token);
    this->finishImages(dq, dk, ofDA, token);
  }
};

}  // namespace seqpar::attn::backward::sm90
