// Decays and input gates of a chunk's tokens, in pass 3 of one or two heads with one decay of all channels each. A warp
// of the producer's warpgroup writes those of one head to the stage, while the transform warpgroup prepares earlier
// chunks.
//
// Vectors of a stage, for head h, with L the sum of log2-decays from the chunk's start:
//     h: 2^L of each token, 2^Lend, and 1 if the chunk decays little
//     2 + h: each token's input gate times 2^(Lend - L); if the chunk decays little, then times 2^-L
//     4 + h, if the chunk does not decay little: L of each token, then its input gate
#pragma once

#include "kernels/attn/linear/forward_sm90/outputs_shared_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/token_factors_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// The vectors that the transform reads.
template <class Layout>
struct HeadVectors {
  static constexpr int kLittle = kChunk + 1;

  const float *decays, *inverses, *sums, *inputs;

  SEQPAR_DEVICE HeadVectors(const char* stage, int head)
      : decays(vector(stage, head)),
        inverses(vector(stage, 2 + head) + kChunk),
        sums(vector(stage, 4 + head)),
        inputs(sums + kChunk) {}
  SEQPAR_DEVICE bool decaysLittle() const { return decays[kLittle] != 0; }

  static SEQPAR_DEVICE const float* vector(const char* stage, int number) {
    return reinterpret_cast<const float*>(stage + Layout::kVectors + number * Layout::kVectorBytes);
  }
};

/// One warp: the vectors of one of Count heads.
template <int Count>
class HeadFactors {
 public:
  using Layout = FactorShared<Count>;

  SEQPAR_DEVICE HeadFactors(const LinearProblem& problem, char* shared, int head)
      : shared_(shared), which_(head), lane_(static_cast<int>(threadIdx.x) % 32), head_(problem) {}

  SEQPAR_DEVICE int run(const Item& item, int first, const Pipeline<Layout::kStages>& pipeline) {
    ForwardChunks chunks(item);
    head_.start(item, item.head + which_);
    Chunk next;
    const auto take = [&] {
      next = Chunk();
      if (chunks.more()) next = chunks.take();
      head_.load(next);
    };
    take();
    int running = first;
    for (; next.length > 0; ++running) {
      const float2 sums = head_.sums(), inputs = head_.inputs();
      take();
      pipeline.waitFree(running);
      put(shared_ + running % Layout::kStages * Layout::kStageBytes, sums, inputs);
      __syncwarp();
      if (lane_ == 0) ptx::mbarrierArrive(pipeline.full(running));
    }
    return running - first;
  }

 private:
  SEQPAR_DEVICE void put(char* stage, float2 sums, float2 inputs) const {
    constexpr float kLeastSum = -100, kMostInverse = 0x1p110F;
    float* const decays = vector(stage, which_);
    float* const factors = vector(stage, 2 + which_);
    const float end = __shfl_sync(0xffffffffU, sums.y, 31);
    const float2 inverses = make_float2(inputs.x * ptx::ex2Approx(-sums.x), inputs.y * ptx::ex2Approx(-sums.y));
    // The product of 2^L of a query and 2^-L of an earlier key is then exact to rounding.
    const bool little = __all_sync(0xffffffffU, static_cast<int>(sums.x >= kLeastSum && sums.y >= kLeastSum &&
                                                                 fabsf(inverses.x) <= kMostInverse &&
                                                                 fabsf(inverses.y) <= kMostInverse)) != 0;
    putPair(decays, ptx::ex2Approx(sums.x), ptx::ex2Approx(sums.y));
    putPair(factors, inputs.x * ptx::ex2Approx(end - sums.x), inputs.y * ptx::ex2Approx(end - sums.y));
    if (lane_ == 0) {
      decays[kChunk] = ptx::ex2Approx(end);
      decays[HeadVectors<Layout>::kLittle] = little ? 1.F : 0.F;
    }
    if (little) {
      putPair(factors + kChunk, inverses.x, inverses.y);
    } else {
      putPair(vector(stage, 4 + which_), sums.x, sums.y);
      putPair(vector(stage, 4 + which_) + kChunk, inputs.x, inputs.y);
    }
  }
  /// Values of tokens lane and 32 + lane.
  SEQPAR_DEVICE void putPair(float* to, float low, float high) const {
    to[lane_] = low;
    to[32 + lane_] = high;
  }
  static SEQPAR_DEVICE float* vector(char* stage, int number) {
    return reinterpret_cast<float*>(stage + Layout::kVectors + number * Layout::kVectorBytes);
  }

  char* shared_;
  int which_, lane_;
  TokenFactors head_;
};

}  // namespace seqpar::attn::forward_sm90
