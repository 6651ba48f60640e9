// Preparation of a chunk of pass 3 by a warpgroup, for two heads with one decay of all channels each, which share
// queries and keys: their scores are computed once, and multiplied by each head's decays and input gates as in
// transform_uniform_sm90.cuh. Consumers multiply values by their factors; queries and keys are unchanged.
//
// Vectors of a stage, for head h of the pair: h: 2^L of each token, then 2^Lend; 2 + h: each token's input gate times
// 2^(Lend - L).
#pragma once

#include "kernels/attn/linear/forward_sm90/outputs_shared_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/token_factors_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

template <class T>
class PairTransform {
 public:
  using Layout = PairShared;

  SEQPAR_DEVICE PairTransform(const LinearProblem& problem, char* shared)
      : shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % 32),
        heads_{TokenFactors(problem), TokenFactors(problem)} {}

  SEQPAR_DEVICE int run(const Item& item, int first, const Pipeline<Layout::kStages>& pipeline) {
    ForwardChunks chunks(item);
    Chunk next;
    const auto take = [&] {
      next = Chunk();
      if (chunks.more()) next = chunks.take();
#pragma unroll
      for (TokenFactors& head : heads_) head.load(next);
    };
#pragma unroll
    for (int h = 0; h < 2; ++h) heads_[h].start(item, item.head + h);
    take();
    int running = first;
    for (; next.length > 0; ++running) {
      const int length = next.length;
      float2 sums[2], inputs[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums[h] = heads_[h].sums();
        inputs[h] = heads_[h].inputs();
      }
      take();
      char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
      pipeline.waitFull(running);
      if (length < kChunk) clearOthers(stage, length);
      float scores[32];
      multiplyScores<T>(scores, stage);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        putVectors(stage, h, sums[h], inputs[h]);
        float decayed[32];
        decayScores(decayed, scores, sums[h]);
        if (heads_[h].gated()) multiplyColumns(decayed, inputs[h]);
        putScores<T>(stage + h * kTileBytes, decayed);
      }
      warpgroup::fenceProxyAsync();
      ptx::mbarrierArrive(pipeline.prepared(running));
    }
    return running - first;
  }

 private:
  /// By warp h.
  SEQPAR_DEVICE void putVectors(char* stage, int h, float2 sums, float2 inputs) const {
    const float end = __shfl_sync(0xffffffffU, sums.y, 31);
    if (static_cast<int>(threadIdx.x) / 32 % 4 != h) return;
    float* const decays = reinterpret_cast<float*>(stage + Layout::kVectors + h * Layout::kVectorBytes);
    float* const factors = decays + 2 * Shape::kChannels;
    decays[lane_] = ptx::ex2Approx(sums.x);
    decays[32 + lane_] = ptx::ex2Approx(sums.y);
    if (lane_ == 31) decays[kChunk] = ptx::ex2Approx(sums.y);
    factors[lane_] = inputs.x * ptx::ex2Approx(end - sums.x);
    factors[32 + lane_] = inputs.y * ptx::ex2Approx(end - sums.y);
  }

  char* shared_;
  int lane_;
  TokenFactors heads_[2];
};

}  // namespace seqpar::attn::forward_sm90
