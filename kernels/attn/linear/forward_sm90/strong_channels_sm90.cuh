// Preparation of an exact chunk of pass 3 (transform_channels_sm90.cuh), by the transform warpgroup. A thread has four
// channels of a block of 16 tokens. Decays of queries and keys are running products, in the scores within blocks
// (strong_scores_sm90.cuh), too: no exponents, and gates are loaded once.
//
// Vectors of a stage: 0: factors of the state to the chunk's start; 1: 1; 2 ... 5: decays of the chunk's blocks.
#pragma once

#include "kernels/attn/linear/forward_sm90/strong_scores_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// An exact chunk of two heads.
template <class T>
class StrongChunk {
 public:
  using Layout = OutputsSharedFor<T, 2>;
  static constexpr int kTokens = kBlockTokens, kAtOnce = 4;  ///< of a thread; loaded together

  SEQPAR_DEVICE StrongChunk(char* shared, char* stage) : shared_(shared), stage_(stage) {}

  /// `gates`: of the thread's tokens; `total`: the log2 of their decay. `before`: log2-decays of the state to the
  /// chunk's start, in shared memory, or NULL. When all gates are used but those of the queries, calls loads(), and its
  /// result with t when those of tokens t to t + 3 are used.
  template <class Loads>
  SEQPAR_DEVICE void run(float4 (&gates)[kTokens], float4 total, const float* before, const Loads& loads) const {
    {
      const QuadLane me = QuadLane::opaque();
      if (me.quarter == 0) {
        *vector(0, me) =
            before == nullptr ? quadOf(1) : exp2Quad(*reinterpret_cast<const float4*>(before + me.channel));
        *vector(1, me) = quadOf(1);
      }
      *vector(kBlockDecays + me.quarter, me) = exp2Quad(total);
    }
#pragma unroll
    for (float4& gate : gates) gate = exp2Quad(kLog2e * gate);
    StrongScores<T>(shared_, stage_, QuadLane::opaque()).run(gates);
    float4 toEnd = quadOf(1), fromStart = toEnd;
    const Decays& decays = gates;
    scale<true>(
        Layout::kKeys, [&](int t) { return toEnd = t + 1 < kTokens ? toEnd * decays[t + 1] : toEnd; }, [](int) {});
    scale<false>(
        Layout::kQueries, [&](int t) { return fromStart = fromStart * decays[t]; }, loads());
  }

 private:
  static constexpr int kBlockDecays = 2;
  using Decays = float4[kTokens];

  SEQPAR_DEVICE float4* vector(int number, const QuadLane& me) const {
    return reinterpret_cast<float4*>(stage_ + Layout::kVectors + number * Layout::kVectorBytes + 4 * me.channel);
  }
  static SEQPAR_DEVICE uint2 packed(float4 x) {
    return make_uint2(Numbers<T>::pack(x.x, x.y), Numbers<T>::pack(x.z, x.w));
  }

  /// Multiplies the thread's elements of a matrix by factors(t), from its first token or, kReverse, last one on. Calls
  /// done(t) after tokens t to t + kAtOnce - 1.
  template <bool kReverse, class Factors, class Done>
  SEQPAR_DEVICE void scale(int matrix, const Factors& factors, Done done) const {
    const QuadLane me = QuadLane::opaque();
    const int start = static_cast<int>(stage_ - shared_) + matrix + me.offset(me.firstToken());
#pragma unroll
    for (int i = 0; i < kTokens; i += kAtOnce) {
      const auto tokenOf = [&](int j) { return kReverse ? kTokens - 1 - i - j : i + j; };
      const auto at = [&](int j) {
        return reinterpret_cast<uint2*>(shared_ + (start ^ tokenOf(j) % 8 << 4) + tokenOf(j) * kRowBytes);
      };
      uint2 words[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) words[j] = *at(j);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) words[j] = packed(factors(tokenOf(j)) * unpackedQuad<T>(words[j]));
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) *at(j) = words[j];
      done(i);
    }
  }

  char *shared_, *stage_;
};

}  // namespace seqpar::attn::forward_sm90
