// Pass 3 of the forward on sm_90a: outputs of segments, each from the state before it, in chunks of 64 tokens: O^T =
// S^T Q^T + V^T P^T with P the scores within the chunk, then S^T = S^T decay + V^T K. S^T stays in registers, as A of
// the first product.
//
// Work      a CTA of 512 threads, one per SM, takes items (batch, segment, head, 128 columns of v) in steps of the
// grid.
//           Heads::Pair: two heads of 64 columns that share queries and keys instead of one, one per consumer.
//           Heads::Joined: two heads of 64 channels and columns with channel decays, one in each panel of a tile. Wide:
//           sweeps
// Roles     warpgroup 0: producer, one thread issues TMA loads; 1: transform, decays and scores; 2, 3: consumers,
//           wgmma, 64 columns of v each. Registers: kProducerRegisters, kTransformRegisters, kConsumerRegisters.
// Tiles     chunks of 64 tokens x 128; S^T 64 x 128 fp32 in the registers of each consumer
// Smem      OutputsShared: three stages of q, k, v (16 KiB each), scores (8 KiB) and vectors; two output tiles;
//           operands of the scores, or a second pair of output tiles
// Barriers  mbarriers of a stage (Pipeline): full (TMA to transform), prepared (transform to consumers), empty
//           (consumers to producer). Named, Barrier: of the transform warpgroup; of each consumer.
// Overlap   may start before pass 1 ends, and then loads and prepares chunks: the inputs were complete before pass 1
//           started. Consumers execute griddepcontrol.wait before they read maps, unless Outputs::mapsVisible, and
//           before they exit.
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/forward_sm90/consumer_channels_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/consumer_uniform_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/transform_channels_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/transform_factors_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/transform_uniform_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

template <class T, Heads H>
using OutputsLayout = std::conditional_t<H == Heads::Joined, OutputsSharedFor<T, 2>, UniformShared<T, H>>;

template <class T, bool Uniform, Heads H, bool Wide>
struct ConsumerOf {
  using Type = UniformConsumer<T, H, Wide>;
};
template <class T, Heads H, bool Wide>
struct ConsumerOf<T, false, H, Wide> {
  using Type = ChannelConsumer<T, Wide, H == Heads::Joined>;
};

/// Wide: more than 128 channels, in sweeps.
template <class T, GateKind Kind, Heads H = Heads::Plain, bool Wide = false>
class OutputsCta {
 public:
  static constexpr bool kUniform = Kind == GateKind::Uniform;
  static constexpr bool kJoined = H == Heads::Joined, kPair = H == Heads::Pair || kJoined;
  static constexpr bool kFactors = kUniform && H != Heads::Plain;
  static constexpr int kCount = kPair ? 2 : 1;
  static_assert(kUniform ? !kJoined : H == Heads::Plain || (kJoined && !Wide));
  using Layout = OutputsLayout<T, H>;
  using Consumer = typename ConsumerOf<T, kUniform, H, Wide>::Type;
  using Transform = std::conditional_t<kFactors, FactorTransform<T, kCount>, UniformTransform<T>>;
  static constexpr int kProducerRegisters = kFactors   ? 40
                                            : kUniform ? 24
                                                       : 32,
                       kTransformRegisters = kJoined    ? 216
                                             : kPair    ? 120
                                             : kUniform ? 104
                                                        : 160,
                       kConsumerRegisters = kJoined    ? 128
                                            : kPair    ? 176
                                            : kFactors ? 184
                                            : kUniform ? 192
                                                       : 160;
  static_assert((kProducerRegisters + kTransformRegisters + 2 * kConsumerRegisters) * kGroupThreads <=
                warpgroup::kSmRegisters);
  static constexpr int kInFlight = kFactors ? 2 : kUniform ? 1 : Layout::kStages;  ///< as in StatesCta

  SEQPAR_DEVICE OutputsCta(const OutputsKernel& kernel, char* shared)
      : kernel_(kernel),
        problem_(kernel.pass.problem),
        shared_(shared),
        pipeline_{ptx::sharedAddress(shared) + Layout::kBarriers} {}

  SEQPAR_DEVICE void run() {
    if (threadIdx.x == 0) pipeline_.init(kFactors ? kCount : 0);
    __syncthreads();
    const int role = static_cast<int>(threadIdx.x) / kGroupThreads;
    if (role == kProducer) {
      warpgroup::setmaxnregDec<kProducerRegisters>();
      [[maybe_unused]] const int warp = static_cast<int>(threadIdx.x) / 32;
      if (threadIdx.x == 0) {
        each([&](const Sweep& item, int first) { return load(item, first); });
      }
      if constexpr (kFactors) {
        if (warp > 0 && warp <= kCount) {
          HeadFactors<kCount> factors(problem_, shared_, warp - 1);
          each([&](const Sweep& item, int first) { return factors.run(item, first, pipeline_); });
        }
      }
    } else if (role == kTransform) {
      if constexpr (kUniform) {
        warpgroup::setmaxnregDec<kTransformRegisters>();
        Transform transform(problem_, shared_);
        each([&](const Sweep& item, int first) { return transform.run(item, first, pipeline_); });
      } else {
        warpgroup::setmaxnregInc<kTransformRegisters>();
        const HeadRange& heads = kernel_.pass.heads;
        ChannelTransform<T, Kind, kCount> transform(problem_, shared_, heads.first + heads.count);
        each([&](const Sweep& item, int first) { return transform.run(item, first, pipeline_); });
      }
    } else {
      warpgroup::setmaxnregInc<kConsumerRegisters>();
      Consumer consumer(kernel_, shared_, role - kConsumer);
      each([&](const Sweep& item, int first) { return consumer.run(item, first, pipeline_); });
    }
  }

 private:
  /// Calls act(sweep, running number of its first chunk), which returns the number of chunks.
  template <class Act>
  SEQPAR_DEVICE void each(const Act& act) {
    const int tiles = (problem_.dv + Shape::kColumns - 1) / Shape::kColumns;
    const Segments& cut = kernel_.pass.segments;
    int first = 0;
    HeadRange heads = kernel_.pass.heads;
    if (kJoined) {
      heads.count = (heads.count + 1) / 2;
    } else if (kPair) {
      heads = {heads.first / 2, heads.count / 2};
    }
    for (int64_t index = blockIdx.x; index < kernel_.items; index += gridDim.x) {
      const auto itemOf = [&] {
        Item item = itemAt(Wide ? index + ptx::opaque(0) : index, problem_, heads, cut, allSegments(cut), tiles);
        if (kPair) item.head += kJoined ? item.head - heads.first : item.head;
        return item;
      };
      first += eachSweep<Wide>(itemOf, first, act);
    }
  }

  SEQPAR_DEVICE int load(const Sweep& item, int first) {
    ForwardChunks chunks(item);
    const int qk = qkHead(problem_, item.head), batch = static_cast<int>(item.batch);
    int running = first;
    for (; chunks.more(); ++running) {
      const Chunk chunk = chunks.take();
      pipeline_.waitFree(running);
      if (kInFlight < Layout::kStages && running >= kInFlight) pipeline_.waitFull(running - kInFlight);
      const uint32_t stage = ptx::sharedAddress(shared_) + running % Layout::kStages * Layout::kStageBytes;
      const uint32_t full = pipeline_.full(running);
      const int token = static_cast<int>(chunk.token);
      if (Kind != GateKind::Uniform) ptx::tmaPrefetch(kernel_.gates, item.firstChannel(), item.head, token, batch);
      if (kJoined) ptx::tmaPrefetch(kernel_.gates, 0, item.head + 1, token, batch);
      ptx::mbarrierArriveExpectTx(full, 2 * kKeyBytes + kValueBytes);
#pragma unroll
      for (int tile = 0; tile < Shape::kMostTiles; ++tile) {
        const int column = tile * kSwizzleColumns, at = tile * kTileBytes;
        if (tile < Shape::kKeyTiles) {
          const int channel = kJoined ? 0 : item.firstChannel() + column,
                    head = kJoined ? qkHead(problem_, item.head + tile) : qk;
          ptx::tmaLoad(stage + Layout::kQueries + at, kernel_.queries, full, channel, head, token, batch);
          ptx::tmaLoad(stage + Layout::kKeys + at, kernel_.keys, full, channel, head, token, batch);
        }
        if (tile >= Shape::kValueTiles) continue;
        ptx::tmaLoad(stage + Layout::kValues + at, kernel_.values, full,
                     kPair ? 0 : item.tile * Shape::kColumns + column, kPair ? item.head + tile : item.head, token,
                     batch);
      }
    }
    return running - first;
  }

  const OutputsKernel& kernel_;
  const LinearProblem& problem_;
  char* shared_;
  Pipeline<Layout::kStages> pipeline_;
};

template <class T, GateKind Kind, Heads H = Heads::Plain, bool Wide = false>
__global__ void __launch_bounds__(kThreads, 1) outputsSm90(const __grid_constant__ OutputsKernel kernel) {
  extern __shared__ __align__(1024) char shared[];
  if (Kind == GateKind::Uniform && kernel.pass.tokens != Tokens::OfSegments) ptx::griddepcontrolLaunchDependents();
  OutputsCta<T, Kind, H, Wide>(kernel, shared).run();
}

}  // namespace seqpar::attn::forward_sm90
