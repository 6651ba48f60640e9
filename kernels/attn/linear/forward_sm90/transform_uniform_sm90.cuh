// Preparation of a chunk of pass 3 by a warpgroup, for one decay of all channels: scores q k 2^(L of the query - L of
// the key), with L the sum of log2-decays from the chunk's start, then keys times 2^(Lend - L). Queries are unchanged.
//
// Vector 0 of a stage: 2^L of each token, then 2^Lend.
#pragma once

#include "kernels/attn/linear/forward_sm90/outputs_shared_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/token_factors_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

template <class T>
class UniformTransform {
 public:
  using Layout = OutputsSharedFor<T>;

  SEQPAR_DEVICE UniformTransform(const LinearProblem& problem, char* shared)
      : shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % 32),
        decays_(problem.gate != Gate::None),
        head_(problem) {}

  SEQPAR_DEVICE int run(const Item& item, int first, const Pipeline<Layout::kStages>& pipeline) {
    ForwardChunks chunks(item);
    head_.start(item, item.head);
    Chunk next;
    const auto take = [&] {
      next = Chunk();
      if (chunks.more()) next = chunks.take();
      head_.load(next);
    };
    take();
    int running = first;
    for (; next.length > 0; ++running) {
      const int length = next.length;
      const float2 sums = head_.sums();
      take();
      char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
      pipeline.waitFull(running);
      if (length < kChunk) clearOthers(stage, length);
      float scores[32];
      multiplyScores<T>(scores, stage);
      putDecayed(stage, scores, sums);
      if (decays_) {
        ptx::barrierSync(kTransformBarrier, kGroupThreads);  // all scores are computed
        decayKeys(stage, sums);
      }
      warpgroup::fenceProxyAsync();
      ptx::mbarrierArrive(pipeline.prepared(running));
    }
    return running - first;
  }

 private:
  SEQPAR_DEVICE void putDecayed(char* stage, const float (&scores)[32], float2 sums) const {
    float* const vector = reinterpret_cast<float*>(stage + Layout::kVectors);
    if (static_cast<int>(threadIdx.x) / 32 % 4 == 0) {
      vector[lane_] = ptx::ex2Approx(sums.x);
      vector[32 + lane_] = ptx::ex2Approx(sums.y);
      if (lane_ == 31) vector[kChunk] = ptx::ex2Approx(sums.y);
    }
    float decayed[32];
    decayScores(decayed, scores, sums);
    putScores<T>(stage, decayed);
  }

  SEQPAR_DEVICE void decayKeys(char* stage, float2 sums) const {
    const float end = __shfl_sync(0xffffffffU, sums.y, 31);
    scaleRows<T>(stage + Layout::kKeys, make_float2(ptx::ex2Approx(end - sums.x), ptx::ex2Approx(end - sums.y)));
  }

  char* shared_;
  int lane_;
  bool decays_;
  TokenFactors head_;
};

}  // namespace seqpar::attn::forward_sm90
