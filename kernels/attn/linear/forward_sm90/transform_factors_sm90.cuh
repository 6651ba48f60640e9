// Preparation of a chunk of pass 3 by a warpgroup, for a head with an input gate and one decay of all channels, or two
// that share queries and keys: scores are computed once, and multiplied by each head's decays and input gates
// (head_factors_sm90.cuh). Consumers multiply values by their factors; queries and keys are unchanged.
#pragma once

#include "kernels/attn/linear/forward_sm90/head_factors_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// Count: of the heads.
template <class T, int Count>
class FactorTransform {
 public:
  using Layout = FactorShared<Count>;

  SEQPAR_DEVICE FactorTransform(const LinearProblem&, char* shared) : shared_(shared) {}

  /// The scores of the next chunk are multiplied while this one's are decayed.
  SEQPAR_DEVICE int run(const Item& item, int first, const Pipeline<Layout::kStages>& pipeline) {
    ForwardChunks chunks(item);
    int running = first;
    if (!chunks.more()) return 0;
    float next[32], scores[32];
    startScores(next, chunks.take().length, running, pipeline);
    awaitScores(scores, next);
    for (; chunks.more(); ++running) {
      char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
      prepare(stage, scores, 0);
      startScores(next, chunks.take().length, running + 1, pipeline);
      if (Count == 2) prepare(stage, scores, 1);
      finish(running, pipeline);
      awaitScores(scores, next);
    }
    char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
    prepare(stage, scores, 0);
    if (Count == 2) prepare(stage, scores, 1);
    finish(running, pipeline);
    return running + 1 - first;
  }

 private:
  using Vectors = HeadVectors<Layout>;

  /// Starts the product of the scores of the chunk `running`; ends with the caller's wait.
  SEQPAR_DEVICE void startScores(float (&scores)[32], int length, int running,
                                 const Pipeline<Layout::kStages>& pipeline) const {
    char* const stage = shared_ + running % Layout::kStages * Layout::kStageBytes;
    pipeline.waitFull(running);
    if (length < kChunk) clearOthers(stage, length);
    warpgroup::arrive();
    addScores<T>(scores, stage + Layout::kQueries, stage + Layout::kKeys, false);
    warpgroup::commit();
  }
  static SEQPAR_DEVICE void awaitScores(float (&scores)[32], float (&next)[32]) {
    warpgroup::wait<0>();
    warpgroup::fenceOperand(next);
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i] = next[i];
  }
  static SEQPAR_DEVICE void finish(int running, const Pipeline<Layout::kStages>& pipeline) {
    warpgroup::fenceProxyAsync();
    ptx::mbarrierArrive(pipeline.prepared(running));
  }
  /// Stores a head's scores.
  static SEQPAR_DEVICE void prepare(char* stage, const float (&scores)[32], int head) {
    float decayed[32];
    decay(decayed, scores, Vectors(stage, head));
    putScores<T>(stage + head * kTileBytes, decayed);
  }
  /// Multiplies scores by the decay from the key to the query, and by the key's input gate.
  static SEQPAR_DEVICE void decay(float (&decayed)[32], const float (&scores)[32], const Vectors& of) {
    if (of.decaysLittle()) {
      eachKey(of.decays, of.inverses,
              [&](int i, float ofQuery, float ofKey, int) { decayed[i] = scores[i] * (ofQuery * ofKey); });
    } else {
      eachKey(of.sums, of.sums, [&](int i, float ofQuery, float ofKey, int key) {
        decayed[i] = scores[i] * ptx::ex2Approx(fminf(ofQuery - ofKey, 0)) * of.inputs[key];
      });
    }
  }
  /// Calls act(element of this thread's scores, value of its query, value of its key, key).
  template <class Act>
  static SEQPAR_DEVICE void eachKey(const float* queries, const float* keys, const Act& act) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const float ofQuery[2] = {queries[16 * warp + lane / 4], queries[16 * warp + lane / 4 + 8]};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int key = 8 * j + 2 * (lane % 4);
      const float2 two = *reinterpret_cast<const float2*>(keys + key);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        act(4 * j + 2 * row, ofQuery[row], two.x, key);
        act(4 * j + 2 * row + 1, ofQuery[row], two.y, key + 1);
      }
    }
  }

  char* shared_;
};

}  // namespace seqpar::attn::forward_sm90
