// The backward kernels of linear attention for compute capability 9.0 on an emulated CTA.
#include <memory>

#include "kernels/attn/linear/backward/gradients_sm90.h"
#include "linear_backward_check.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

template <class T, bool kChannel, bool kPair = false>
struct KernelsSm90 {
  static constexpr bool kExact = false;
  static constexpr int kTogether = kPair ? backward::kPair : 1;
  static constexpr int kWithOneTerm = kPair && !kChannel ? kTogether : 1;
  static constexpr bool kScales = ptx::kIsBf16<T> && !(kChannel && kPair);
  static constexpr bool kSumsValues = !kChannel;
  using Number = T;

  static void maps(const Task& task, uint64_t seed) {
    if constexpr (kChannel && kPair) {
      Kernels<T, 64, true>::maps(task, seed);
    } else {
      emulator::run(2, sm90::MapsPlace::kThreads, sizeof(sm90::MapsMemory<T, kChannel>), seed,
                    [&] { sm90::segmentMaps<T, kChannel>(task); });
    }
  }
  template <class Kernel>
  static void run(const Task& task, uint64_t seed) {
    typename Kernel::Arguments arguments;
    if constexpr (kChannel) {
      arguments = task;
    } else {
      REQUIRE(sm90::encodeMaps<T>(arguments, task));
    }
    emulator::run(2, sm90::kGradientThreads, sizeof(typename Kernel::Memory), seed, [&] { Kernel::run(arguments); });
  }
  static void gradients(Task task, uint64_t seed) {
    std::vector<uint32_t> strong(static_cast<size_t>(itemsOf(task)), 7);
    task.strong = strong.data();
    if constexpr (kChannel) {
      const auto runChannels = [&]<bool kTerms>() {
        run<sm90::GradientsKernel<T, true, false, kPair, false, false, kTerms>>(task, seed);
        run<sm90::GradientsKernel<T, true, false, kPair, true, false, kTerms>>(task, seed);
      };
      if (kScales && (task.dq.scales != nullptr || task.dvOut.scales != nullptr)) {
        runChannels.template operator()<kScales>();
      } else {
        runChannels.template operator()<false>();
      }
    } else if (itemsTogether(task) > 1) {
      runTokens<true>(task, seed);
    } else {
      runTokens<false>(task, seed);
    }
  }
  template <bool kWide>
  static void runTokens(const Task& task, uint64_t seed) {
    if (task.inputGates.data != nullptr) {
      run<sm90::GradientsKernel<T, false, true, kPair, false, kWide>>(task, seed);
    } else {
      run<sm90::GradientsKernel<T, false, false, kPair, false, kWide>>(task, seed);
    }
  }
};

template <class T, bool kChannel>
void checkSm90(const BackwardShape& shape, double mostOfTokens = 0) {
  checkKernels<T, KernelsSm90<T, kChannel>, kChannel>(shape, mostOfTokens);
}
/// Each number's error is bounded relative to the magnitudes of its own terms, however small they are.
template <class K>
void checkNumbers(const BackwardShape& shape) {
  const Seed seed;
  INFO(shape.name() << ", seed " << seed);
  const BackwardCase c(shape, seed);
  const Found found = gradientsOf<K, true>(c, seed);
  const LinearGradients terms = c.magnitudes();
  const auto wrong = [](const std::vector<double>& is, const std::vector<double>& expected,
                        const std::vector<double>& magnitudes) {
    size_t count = 0;
    for (size_t i = 0; i < is.size(); ++i) count += !(std::abs(is[i] - expected[i]) <= 0x1p-6 * magnitudes[i]);
    return count;
  };
  CHECK(wrong(found.dq, c.expected.dq, terms.dq) == 0);
  CHECK(wrong(found.dk, c.expected.dk, terms.dk) == 0);
  CHECK(wrong(found.dv, c.expected.dv, terms.dv) == 0);
}
template <class T>
void checkTwoHeads(const BackwardShape& shape, double mostOfTokens = 0) {
  checkKernels<T, KernelsSm90<T, true, true>, true>(shape, mostOfTokens);
}
BackwardShape shapeOfTwo(int64_t tokens, double decay) {
  BackwardShape shape = shapeOf(Gate::Channel, tokens, 64, 64, decay);
  shape.heads = shape.qkHeads = 2;
  return shape;
}
void checkPairs(const BackwardShape& shape) {
  checkKernels<Bf16, KernelsSm90<Bf16, false, true>, false>(shape);
}

}  // namespace

TEST_CASE("backward kernels of sm_90 with a decay a channel") {
  checkSm90<Bf16, true>(shapeOf(Gate::Channel, 130, 128, 128, 0.05));
  BackwardShape one = shapeOf(Gate::Channel, 330, 128, 96, 0.05);
  one.segmentTokens = 384;
  checkSm90<Bf16, true>(one);
  one.gateType = seqparBfloat16;
  checkSm90<Bf16, true>(one);
  checkSm90<Fp16, true>(shapeOf(Gate::Channel, 65, 112, 80, 0.02));
  BackwardShape apart = shapeOf(Gate::Channel, 200, 128, 128, 0.02);
  apart.content = Maps::PerSegment;
  checkSm90<Bf16, true>(apart);
  apart.gate = Gate::Token;
  checkSm90<Bf16, false>(apart);
}

TEST_CASE("backward kernels of sm_90 round queries and keys to fp16") {
  // Only states, the keys added to them and the keys multiplied by them remain in bf16.
  constexpr double kMost = 0x1.8p-10;
  BackwardShape shape = shapeOf(Gate::Channel, 330, 128, 128, 0.05);
  shape.segmentTokens = 384;
  shape.states = false;
  checkSm90<Bf16, true>(shape, kMost);
  shape.decay = 0.15;
  shape.qScale = 1e-5;
  shape.kScale = 1e4;
  shape.dOutScale = 1e-6;
  checkSm90<Bf16, true>(shape, kMost);
}

TEST_CASE("small keys of sm_90 chunks keep their fp16 precision under weak decays") {
  using Images = sm90::ChunkImages<Bf16>;
  const auto memory = std::make_unique<sm90::ChannelMemory<Bf16>>();
  for (int i = 0; i < sm90::ChannelMemory<Bf16>::kWarps; ++i) {
    memory->largest[i][0] = asBits(1.0f) >> 16;
    memory->largest[i][1] = asBits(5.0f) >> 16;
  }
  for (const float decay : {0.0f, 4.6f, 12.0f, 27.9f}) {
    memory->leastTotal[0] = asBits(decay);
    const sm90::ImageScales scales = Images::scalesOf(*memory, 1);
    REQUIRE(scales.fit == 1);
    const float scale = sm90::powerOf2(scales.keys);
    CHECK(5.0f * std::exp2(decay) * scale <= 0x1p15f);  // the last token's, divided by its decay
    for (int i = 0; i < 100; ++i) {
      const float key = 5.0f * std::exp2(-0.11f * static_cast<float>(i));
      const float image = ptx::lowOf<Fp16>(sm90::packHalves(key * scale, 0)) / scale;
      CHECK(std::abs(image - key) <= key * std::max(0x1p-11f, std::exp2(0.11f * i + decay - 37)));
    }
  }
  memory->leastTotal[0] = asBits(28.1f);
  CHECK(Images::scalesOf(*memory, 1).fit == 0);
  memory->leastTotal[0] = asBits(std::numeric_limits<float>::quiet_NaN());
  CHECK(Images::scalesOf(*memory, 1).fit == 0);
}

TEST_CASE("backward kernels of sm_90 round values outside the range of fp16 to bf16") {
  BackwardShape shape = shapeOf(Gate::Channel, 130, 128, 128, 0.3);  // some chunks decay below 2^-28
  shape.segmentTokens = 192;
  checkSm90<Bf16, true>(shape);
  shape.decay = 0.05;
  shape.states = false;
  shape.kScale = 1e-12;
  checkSm90<Bf16, true>(shape);
  shape.qScale = 1e10;
  shape.kScale = 1;
  checkSm90<Bf16, true>(shape);
}

TEST_CASE("backward kernels of sm_90 keep packed sequences apart") {
  BackwardShape packed = shapeOf(Gate::Channel, 190, 128, 128, 0.05);
  packed.starts = {0, 5, 64, 65, 130};
  checkSequencesApart<Bf16, KernelsSm90<Bf16, true>, true>(packed);
  packed.starts = {80};
  packed.content = Maps::PerSegment;
  packed.gateType = seqparBfloat16;
  checkSequencesApart<Fp16, KernelsSm90<Fp16, true>, true>(packed);
  packed.gateType = seqparFloat32;
  for (const Gate gate : {Gate::Token, Gate::Head, Gate::None}) {
    packed.gate = gate;
    packed.starts = {20, 21, 130};
    packed.content = gate == Gate::Head ? Maps::PerSegment : Maps::Prefix;
    checkSequencesApart<Bf16, KernelsSm90<Bf16, false>, false>(packed);
  }
}

TEST_CASE("backward kernels of sm_90 with strong decays round little but states") {
  // As the other kernels with strong decays.
  constexpr double kMost = 0x1p-10;
  BackwardShape strong = shapeOf(Gate::Channel, 240, 128, 128, 0.8);
  strong.states = false;
  checkSm90<Bf16, true>(strong, kMost);
  strong.qScale = 1e-5;
  strong.kScale = 1e4;
  strong.dOutScale = 1e-6;
  checkSm90<Bf16, true>(strong, kMost);
  strong.qScale = 1e9;
  strong.kScale = 1e-9;
  checkSm90<Bf16, true>(strong, kMost);
}

TEST_CASE("backward kernels of sm_90 keep gradients of rows of very different magnitudes") {
  constexpr double kMild = 0.05, kBelowImages = 0.4, kStrong = 2;
  for (const double decay : {kMild, kBelowImages, kStrong}) {
    BackwardShape rows = shapeOf(Gate::Channel, 150, 128, 128, decay);
    rows.smallest = 60;
    rows.largest = 20;
    checkNumbers<KernelsSm90<Bf16, true>>(rows);
    rows.scalesKeys = true;
    checkNumbers<KernelsSm90<Bf16, true>>(rows);
    rows.states = false;
    checkNumbers<KernelsSm90<Bf16, true>>(rows);
    rows.scalesKeys = false;
    checkNumbers<KernelsSm90<Bf16, true>>(rows);
    rows.smallest = 12;  // within the range of images, or not far from it
    rows.largest = 0;
    checkNumbers<KernelsSm90<Bf16, true>>(rows);
    rows.scalesKeys = true;
    checkNumbers<KernelsSm90<Bf16, true>>(rows);
  }
}

TEST_CASE("backward kernels of sm_90 keep small elements of terms of channels") {
  // Channels without decays have large values of the token before, the others only the token's own small ones.
  for (const double decay : {0.05, 2.0, 8.0}) {
    BackwardShape shape = shapeOf(Gate::Channel, 150, 128, 144, decay);
    shape.heads = 2;  // which share queries and keys
    shape.smallest = 60;
    shape.largest = 50;
    checkNumbers<KernelsSm90<Bf16, true>>(shape);
    shape.scalesKeys = true;
    shape.states = false;
    checkNumbers<KernelsSm90<Bf16, true>>(shape);
  }
}

TEST_CASE("backward kernels of sm_90 keep packed sequences with strong decays apart") {
  BackwardShape packed = shapeOf(Gate::Channel, 190, 128, 128, 2);
  packed.starts = {0, 5, 64, 65, 130};
  checkSequencesApart<Bf16, KernelsSm90<Bf16, true>, true>(packed);
  packed.decay = kZeros;
  packed.gateType = seqparBfloat16;
  checkSequencesApart<Fp16, KernelsSm90<Fp16, true>, true>(packed);
}

TEST_CASE("backward kernels of sm_90 with strong decays") {
  checkSm90<Bf16, true>(shapeOf(Gate::Channel, 100, 128, 128, 30));
  checkSm90<Bf16, true>(shapeOf(Gate::Channel, 190, 128, 128, 1));
  checkSm90<Bf16, true>(shapeOf(Gate::Channel, 190, 128, 128, 5));
  checkSm90<Fp16, true>(shapeOf(Gate::Channel, 100, 112, 80, 1));
  BackwardShape zeros = shapeOf(Gate::Channel, 150, 128, 128, kZeros);
  zeros.gateType = seqparBfloat16;
  checkSm90<Bf16, true>(zeros);
  checkSm90<Fp16, true>(zeros);
  BackwardShape packed = shapeOf(Gate::Channel, 250, 128, 128, 0.05);
  packed.starts = {-3, 70, 200};
  checkSm90<Bf16, true>(packed);
  packed.content = Maps::PerSegment;
  checkSm90<Bf16, true>(packed);
}

TEST_CASE("backward kernels of sm_90 with an input gate") {
  BackwardShape shape = shapeOf(Gate::Token, 200, 128, 64, 0.05);
  shape.heads = 2;
  shape.qkHeads = 1;
  shape.segmentTokens = 128;
  shape.inputGates = true;
  checkSm90<Bf16, false>(shape);
  shape.heads = 1;
  shape.decay = kZeros;
  checkSm90<Fp16, false>(shape);
  for (const Gate gate : {Gate::Head, Gate::None}) {
    shape = shapeOf(gate, 130, 96, 128, 0.05);
    shape.inputGates = true;
    checkSm90<Bf16, false>(shape);
  }
}

TEST_CASE("backward kernels of sm_90 for pairs of heads") {
  BackwardShape shape = shapeOf(Gate::Token, 200, 128, 64, 0.05);
  shape.heads = 4;
  shape.qkHeads = 1;
  shape.segmentTokens = 128;
  shape.inputGates = true;
  checkPairs(shape);
  shape.heads = 2;
  shape.decay = kZeros;
  checkPairs(shape);
  shape.inputGates = false;
  checkPairs(shape);
  shape.decay = 0.5;
  shape.starts = {-3, 0, 5, 64, 65, 130, 200};
  checkPairs(shape);
  for (const Gate gate : {Gate::Head, Gate::None}) {
    shape = shapeOf(gate, 130, 64, 64, 0.05);
    shape.heads = 4;
    shape.qkHeads = 2;
    if (gate == Gate::Head) shape.content = Maps::PerSegment;
    shape.inputGates = gate == Gate::None;
    checkPairs(shape);
  }
}

TEST_CASE("backward kernels of sm_90 for pairs of heads with blocks of keys") {
  BackwardShape shape = shapeOf(Gate::Token, 140, 256, 64, 0.05);
  shape.heads = 4;
  shape.qkHeads = 1;
  checkPairs(shape);
  shape.heads = 2;
  shape.dk = 192;
  shape.segmentTokens = 64;
  shape.inputGates = true;
  checkPairs(shape);
}

TEST_CASE("backward kernels of sm_90 with a decay a channel and blocks of keys and values") {
  for (const double decay : {0.05, 1.0}) {
    BackwardShape shape = shapeOf(Gate::Channel, 130, 256, 256, decay);
    if (decay < 1) shape.segmentTokens = 128;
    checkSm90<Bf16, true>(shape);
    shape.heads = 2;
    shape.qkHeads = 1;
    shape.dk = decay < 1 ? 128 : 144;
    shape.dv = 80;
    checkSm90<Bf16, true>(shape);
  }
  checkSm90<Fp16, true>(shapeOf(Gate::Channel, 130, 256, 144, 0.05));
}

TEST_CASE("backward kernels of sm_90 for two short heads with a decay a channel") {
  checkTwoHeads<Bf16>(shapeOfTwo(130, 0.05));
  BackwardShape shape = shapeOfTwo(330, 0.05);
  shape.segmentTokens = 384;
  shape.heads = shape.qkHeads = 3;  // the last CTA has one
  shape.gateType = seqparBfloat16;
  checkTwoHeads<Bf16>(shape);
  checkTwoHeads<Fp16>(shapeOfTwo(130, 0.02));
  shape = shapeOfTwo(200, 0.02);
  shape.dk = 48;
  shape.dv = 64;
  shape.content = Maps::PerSegment;
  checkTwoHeads<Bf16>(shape);
  shape.heads = 4;  // which share queries and keys
  checkTwoHeads<Bf16>(shape);
  checkTwoHeads<Fp16>(shape);
}

TEST_CASE("backward kernels of sm_90 for two short heads round queries and keys to fp16") {
  constexpr double kMost = 0x1.cp-10;  // channels are fewer than of longer heads, and their decays differ
  BackwardShape shape = shapeOfTwo(330, 0.15);
  shape.segmentTokens = 384;
  shape.states = false;
  shape.qScale = 1e-5;
  shape.kScale = 1e4;
  shape.dOutScale = 1e-6;
  checkTwoHeads<Bf16>(shape, kMost);
  shape.decay = 0.3;  // some chunks of one head or both decay below 2^-28
  shape.segmentTokens = 192;
  shape.qScale = shape.kScale = shape.dOutScale = 1;
  checkTwoHeads<Bf16>(shape);
}

TEST_CASE("backward kernels of sm_90 for two short heads with strong decays") {
  constexpr double kMost = 0x1p-10;
  BackwardShape shape = shapeOfTwo(240, 0.8);
  shape.states = false;
  checkTwoHeads<Bf16>(shape, kMost);
  shape.heads = shape.qkHeads = 1;
  checkTwoHeads<Bf16>(shape, kMost);
  checkTwoHeads<Bf16>(shapeOfTwo(100, 30));
  checkTwoHeads<Bf16>(shapeOfTwo(190, 5));
  checkTwoHeads<Fp16>(shapeOfTwo(100, 1));
  shape = shapeOfTwo(150, kZeros);
  shape.gateType = seqparBfloat16;
  checkTwoHeads<Bf16>(shape);
  checkTwoHeads<Fp16>(shape);
  shape = shapeOfTwo(250, 0.05);
  shape.starts = {-3, 70, 200};
  checkTwoHeads<Bf16>(shape);
  shape.content = Maps::PerSegment;
  checkTwoHeads<Bf16>(shape);
}

TEST_CASE("backward kernels of sm_90 for two short heads keep rows of very different magnitudes") {
  for (const double decay : {0.05, 0.4, 2.0}) {
    BackwardShape rows = shapeOfTwo(150, decay);
    rows.smallest = 60;
    rows.largest = 20;
    checkNumbers<KernelsSm90<Bf16, true, true>>(rows);
    rows.scalesKeys = true;
    rows.states = false;
    checkNumbers<KernelsSm90<Bf16, true, true>>(rows);
    rows.smallest = 12;
    rows.largest = 0;
    checkNumbers<KernelsSm90<Bf16, true, true>>(rows);
  }
}

TEST_CASE("backward kernels of sm_90 for two short heads keep packed sequences apart") {
  for (const double decay : {0.05, 2.0}) {
    BackwardShape packed = shapeOfTwo(190, decay);
    packed.starts = {0, 5, 64, 65, 130};
    checkSequencesApart<Bf16, KernelsSm90<Bf16, true, true>, true>(packed);
  }
  BackwardShape packed = shapeOfTwo(190, kZeros);
  packed.starts = {80};
  packed.content = Maps::PerSegment;
  packed.gateType = seqparBfloat16;
  checkSequencesApart<Fp16, KernelsSm90<Fp16, true, true>, true>(packed);
}

TEST_CASE("backward kernels of sm_90 for token decays with blocks of keys") {
  BackwardShape shape = shapeOf(Gate::Token, 140, 256, 128, 0.05);
  shape.inputGates = true;
  checkSm90<Bf16, false>(shape);
  shape.heads = 2;
  shape.qkHeads = 1;
  shape.dk = 144;
  shape.dv = 48;
  checkSm90<Bf16, false>(shape);
  shape.inputGates = false;
  shape.dv = 192;
  shape.starts = {-3, 70};
  checkSm90<Fp16, false>(shape);
}

TEST_CASE("backward kernels of sm_90 for pairs of heads keep packed sequences apart") {
  BackwardShape packed = shapeOf(Gate::Token, 190, 128, 64, 0.05);
  packed.heads = 2;
  packed.qkHeads = 1;
  packed.starts = {0, 5, 64, 65, 130};
  checkSequencesApart<Bf16, KernelsSm90<Bf16, false, true>, false>(packed);
}

TEST_CASE("backward kernels of sm_90 with a decay a token or a head, and without") {
  BackwardShape shape = shapeOf(Gate::Token, 200, 128, 128, 0.05);
  shape.heads = 2;
  shape.segmentTokens = 128;
  checkSm90<Bf16, false>(shape);
  shape.starts = {-3, 0, 5, 64, 65, 130, 200};
  shape.decay = kZeros;
  checkSm90<Fp16, false>(shape);
  shape.starts.clear();
  shape.dk = 64;
  shape.dv = 48;
  shape.decay = 0.05;
  checkSm90<Bf16, false>(shape);
  shape.dk = shape.dv = 128;
  shape.decay = kZeros;
  shape.gate = Gate::None;
  shape.tokens = 100;
  checkSm90<Bf16, false>(shape);
  shape.gate = Gate::Head;
  shape.dk = 144;
  checkSm90<Bf16, false>(shape);
  shape.dk = 192;
  shape.dv = 208;
  shape.heads = 4;
  shape.qkHeads = 2;
  checkSm90<Bf16, false>(shape);
}
