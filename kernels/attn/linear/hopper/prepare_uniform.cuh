// Preparation of a chunk of pass 3 by a warpgroup, for one decay of all channels: scores q k 2^(L of the query - L of
// the key), with L the sum of log2-decays from the chunk's start, then keys times 2^(Lend - L). Both are multiplied by the
// key's input gate. Queries are unchanged.
//
// Vector 0 of a stage: 2^L of each token, then 2^Lend.
#pragma once

#include "kernels/attn/linear/head_input_gates.h"
#include "kernels/attn/linear/hopper/outputs_shared.cuh"

namespace seqpar::attn::hopper {

template <class T>
class UniformPreparer {
 public:
  using Layout = OutputsShared;

  SEQPAR_DEVICE UniformPreparer(const LinearProblem& problem, char* shared)
      : problem_(problem), shared_(shared), lane_(static_cast<int>(threadIdx.x) % 32) {}

  SEQPAR_DEVICE int run(const Item& item, int first, const Pipeline<Layout::kStages>& pipeline) {
    ForwardChunks chunks(item);
    constant_ = problem_.gate == Gate::Head ? static_cast<const float*>(problem_.gates.data)[item.head] : 0;
    tokens_ = problem_.gate == Gate::Token ? static_cast<const float*>(problem_.gates.data) +
                                                 item.batch * problem_.gates.batch + item.head * problem_.gates.head
                                           : nullptr;
    inputs_ = HeadInputGates(problem_.inputGates, problem_.inputGateType, item.batch, item.head);
    Chunk next;
    const auto take = [&] {
      next = Chunk();
      if (chunks.more()) next = chunks.take();
      gates_ = make_float2(read(next, lane_), read(next, lane_ + 32));
      if (inputs_.given()) factors_ = make_float2(readInput(next, lane_), readInput(next, lane_ + 32));
    };
    take();
    int running = first;
    for (; next.length > 0; ++running) {
      const int length = next.length;
      float2 sums = make_float2(sumTo(log2Decay(gates_.x)), sumTo(log2Decay(gates_.y)));
      sums.y += __shfl_sync(0xffffffffU, sums.x, 31);
      const float2 inputs = factors_;
      take();
      char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
      pipeline.waitFull(running);
      if (length < kChunk) clearOthers(stage, length);
      float scores[32];
      multiplyScores<T>(scores, stage);
      if (inputs_.given()) multiplyColumns(scores, inputs);
      putDecayed(stage, scores, sums);
      if (problem_.gate != Gate::None || inputs_.given()) {
        ptx::barrierSync(kPrepareBarrier, kGroupThreads);  // all scores are computed
        decayKeys(stage, sums, inputs);
      }
      warpgroup::fenceProxyAsync();
      ptx::mbarrierArrive(pipeline.prepared(running));
    }
    return running - first;
  }

 private:
  SEQPAR_DEVICE float read(const Chunk& chunk, int t) const {
    if (t >= chunk.length) return 0;
    return tokens_ == nullptr ? constant_ : tokens_[(chunk.token + t) * problem_.gates.token];
  }
  SEQPAR_DEVICE float readInput(const Chunk& chunk, int t) const {
    return t < chunk.length ? inputs_.read(chunk.token + t) : 0;
  }
  /// Multiplies the score of each key by the key's factor.
  SEQPAR_DEVICE void multiplyColumns(float (&scores)[32], float2 factors) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = 8 * j + 2 * (lane_ % 4) + e;
        const float factor = __shfl_sync(0xffffffffU, j < 4 ? factors.x : factors.y, key % 32);
        scores[4 * j + e] *= factor;
        scores[4 * j + 2 + e] *= factor;
      }
    }
  }
  /// The inclusive prefix sum over lanes.
  SEQPAR_DEVICE float sumTo(float own) const {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = __shfl_up_sync(0xffffffffU, own, distance);
      if (lane_ >= distance) own += other;
    }
    return own;
  }

  SEQPAR_DEVICE void putDecayed(char* stage, const float (&scores)[32], float2 sums) const {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    float* const vector = reinterpret_cast<float*>(stage + Layout::kVectors);
    if (warp == 0) {
      vector[lane_] = ptx::ex2Approx(sums.x);
      vector[32 + lane_] = ptx::ex2Approx(sums.y);
      if (lane_ == 31) vector[kChunk] = ptx::ex2Approx(sums.y);
    }
    const auto sumOf = [&](float half, int token) { return __shfl_sync(0xffffffffU, half, token % 32); };
    const float half = warp < 2 ? sums.x : sums.y;
    const float ofQuery[2] = {sumOf(half, 16 * warp + lane_ / 4), sumOf(half, 16 * warp + lane_ / 4 + 8)};
    float decayed[32];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float ofKey = sumOf(j < 4 ? sums.x : sums.y, 8 * j + 2 * (lane_ % 4) + e);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int i = 4 * j + 2 * row + e;
          decayed[i] = scores[i] * ptx::ex2Approx(fminf(ofQuery[row] - ofKey, 0));
        }
      }
    }
    putScores<T>(stage, decayed);
  }

  SEQPAR_DEVICE void decayKeys(char* stage, float2 sums, float2 inputs) const {
    const float end = __shfl_sync(0xffffffffU, sums.y, 31);
    const float2 factors =
        make_float2(inputs.x * ptx::ex2Approx(end - sums.x), inputs.y * ptx::ex2Approx(end - sums.y));
    scaleRows<T>(stage + Layout::kKeys, factors);
  }

  const LinearProblem& problem_;
  char* shared_;
  int lane_;
  float constant_ = 0;
  const float* tokens_ = nullptr;
  HeadInputGates inputs_;
  float2 gates_;
  float2 factors_ = make_float2(1, 1);  ///< input gates of the next chunk
};

}  // namespace seqpar::attn::hopper
