// The backward kernels of linear attention for compute capability 9.0 on an emulated CTA.
#include "common/covering.h"
#include "linear_backward_sm90_check.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

template <class T, bool kChannel>
void checkSm90(const BackwardShape& shape, double mostOfTokens = 0) {
  checkKernels<T, KernelsSm90<T, kChannel>, kChannel>(shape, mostOfTokens);
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
  for (const double decay : thinned({30.0, 1.0, 5.0})) {
    checkSm90<Bf16, true>(shapeOf(Gate::Channel, decay > 5 ? 100 : 190, 128, 128, decay));
  }
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
