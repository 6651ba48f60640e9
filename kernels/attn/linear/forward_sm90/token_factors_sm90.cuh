// Decays and input gates of a chunk's tokens, for pass 3 with one decay of all channels, and scores times them. In each
// warp of the transform warpgroup, lane t has tokens t and 32 + t.
#pragma once

#include "kernels/attn/linear/forward_sm90/forward_chunks_sm90.cuh"
#include "kernels/attn/linear/head_input_gates.h"

namespace seqpar::attn::forward_sm90 {

/// Of one head.
class TokenFactors {
 public:
  SEQPAR_DEVICE explicit TokenFactors(const LinearProblem& problem) : problem_(problem) {}

  SEQPAR_DEVICE void start(const Item& item, int head) {
    constant_ = problem_.gate == Gate::Head ? static_cast<const float*>(problem_.gates.data)[head] : 0;
    tokens_ = problem_.gate == Gate::Token ? static_cast<const float*>(problem_.gates.data) +
                                                 item.batch * problem_.gates.batch + head * problem_.gates.head
                                           : nullptr;
    gates_ = HeadInputGates(problem_.inputGates, problem_.inputGateType, item.batch, head);
  }
  /// Loads the chunk that the functions below refer to.
  SEQPAR_DEVICE void load(const Chunk& chunk) {
    logs_ = make_float2(decay(chunk, lane()), decay(chunk, lane() + 32));
    if (gated()) inputs_ = make_float2(input(chunk, lane()), input(chunk, lane() + 32));
  }
  /// Sums of log2-decays from the chunk's start.
  SEQPAR_DEVICE float2 sums() const {
    float2 sums = make_float2(sumTo(log2Decay(logs_.x)), sumTo(log2Decay(logs_.y)));
    sums.y += __shfl_sync(0xffffffffU, sums.x, 31);
    return sums;
  }
  SEQPAR_DEVICE bool gated() const { return gates_.given(); }
  SEQPAR_DEVICE float2 inputs() const { return inputs_; }  ///< 1 without input gates

 private:
  static SEQPAR_DEVICE int lane() { return static_cast<int>(threadIdx.x) % 32; }
  SEQPAR_DEVICE float decay(const Chunk& chunk, int t) const {
    if (t >= chunk.length) return 0;
    return tokens_ == nullptr ? constant_ : tokens_[(chunk.token + t) * problem_.gates.token];
  }
  SEQPAR_DEVICE float input(const Chunk& chunk, int t) const {
    return t < chunk.length ? gates_.read(chunk.token + t) : 0;
  }
  /// The inclusive prefix sum over lanes.
  static SEQPAR_DEVICE float sumTo(float own) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = __shfl_up_sync(0xffffffffU, own, distance);
      if (lane() >= distance) own += other;
    }
    return own;
  }

  const LinearProblem& problem_;
  float constant_ = 0;
  const float* tokens_ = nullptr;
  HeadInputGates gates_;
  float2 logs_, inputs_ = make_float2(1, 1);
};

/// The value of the key of elements 4 j + e and 4 j + 2 + e of this thread's scores.
SEQPAR_DEVICE float ofKey(float2 values, int j, int e) {
  const int key = 8 * j + 2 * (static_cast<int>(threadIdx.x) % 4) + e;
  return __shfl_sync(0xffffffffU, j < 4 ? values.x : values.y, key % 32);
}

/// Scores times 2^(sum of the query - sum of the key).
SEQPAR_DEVICE void decayScores(float (&decayed)[32], const float (&scores)[32], float2 sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const float half = warp < 2 ? sums.x : sums.y;
  const float ofQuery[2] = {__shfl_sync(0xffffffffU, half, (16 * warp + lane / 4) % 32),
                            __shfl_sync(0xffffffffU, half, (16 * warp + lane / 4 + 8) % 32)};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float sum = ofKey(sums, j, e);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int i = 4 * j + 2 * row + e;
        decayed[i] = scores[i] * ptx::ex2Approx(fminf(ofQuery[row] - sum, 0));
      }
    }
  }
}

}  // namespace seqpar::attn::forward_sm90
