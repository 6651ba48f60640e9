// The backward kernels of linear attention on an emulated CTA, and the reference that they are compared with.
#include "common/covering.h"
#include "linear_backward_check.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

TEST_CASE("the reference's gradients are those of its outputs") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> draw;
  const auto normal = [&](int64_t count) {
    std::vector<double> values(count);
    for (double& value : values) value = draw(random);
    return values;
  };
  LinearShape shape;
  shape.batch = 2;
  shape.tokens = 7;
  shape.heads = 4;
  shape.qkHeads = 2;
  shape.dk = 3;
  shape.dv = 2;
  shape.scale = 0.7;
  LinearInputs in{normal(shape.keySize()),  normal(shape.keySize()),   normal(shape.valueSize()),
                  normal(shape.gateSize()), normal(shape.stateSize()), {0, 0, 0, 1, 0, 0, 0}};
  for (double& log : in.logDecay) log = -std::fabs(log);
  const auto dOut = normal(shape.valueSize()), dFinal = normal(shape.stateSize());
  const LinearGradients gradients = linearGradientReference(shape, in, dOut, dFinal);
  const auto loss = [&] {
    const LinearOutputs outputs = linearReference(shape, in);
    double sum = 0;
    for (size_t i = 0; i < dOut.size(); ++i) sum += dOut[i] * outputs.out[i];
    for (size_t i = 0; i < dFinal.size(); ++i) sum += dFinal[i] * outputs.finalState[i];
    return sum;
  };
  const auto compare = [&](std::vector<double>& values, const std::vector<double>& expected) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double at = values[i], step = 1e-5;
      values[i] = at + step;
      const double above = loss();
      values[i] = at - step;
      const double below = loss();
      values[i] = at;
      CHECK((above - below) / (2 * step) == Approx(expected[i]).margin(1e-6).epsilon(1e-6));
    }
  };
  compare(in.q, gradients.dq);
  compare(in.k, gradients.dk);
  compare(in.v, gradients.dv);
  compare(in.logDecay, gradients.dLogDecay);
  compare(in.initial, gradients.dInitial);
}

TEST_CASE("backward kernels with a decay a channel") {
  check<Bf16, 64, true>(shapeOf(Gate::Channel, 150, 64, 64, 0.05));
  check<Bf16, 128, true>(shapeOf(Gate::Channel, 130, 128, 128, 0.05));
  check<Fp16, 128, true>(shapeOf(Gate::Channel, 65, 112, 80, 0.02));
  BackwardShape one = shapeOf(Gate::Channel, 90, 128, 128, 0.05);
  one.segmentTokens = 128;
  check<Bf16, 128, true>(one);
}

TEST_CASE("backward kernels with strong decays, decays of 0 and packed sequences") {
  check<Bf16, 64, true>(shapeOf(Gate::Channel, 100, 64, 64, 30));
  check<Fp16, 64, true>(shapeOf(Gate::Channel, 100, 48, 64, 1));
  BackwardShape packed = shapeOf(Gate::Channel, 150, 128, 128, kZeros);
  packed.starts = {-3, 0, 5, 64, 65, 130, 200};
  check<Bf16, 128, true>(packed);
  packed.gate = Gate::Token;
  check<Bf16, 128, false>(packed);
  packed.decay = 0.05;
  packed.gate = Gate::Channel;
  packed.gateType = seqparBfloat16;
  check<Fp16, 128, true>(packed);
}

TEST_CASE("backward kernels with strong decays round little but states") {
  // Only products between tiles of 16 tokens have rounding errors, and only for tokens next to a tile border: one token
  // in 16 is multiplied by another tile's tokens before they have decayed. Two roundings: 2 * 2^-9 / sqrt(16). Rounded
  // queries and keys: 2^-9. All chunks have strong decays, including the last one of 48 tokens; a chunk of 8 tokens
  // would be rounded as with weak decays, and the error would depend on the values drawn for these 8.
  constexpr double kMost = 0x1p-10;
  BackwardShape strong = shapeOf(Gate::Channel, 240, 128, 128, 0.8);
  strong.states = false;
  check<Bf16, 128, true>(strong, kMost);
  strong.dk = strong.dv = 64;
  check<Bf16, 64, true>(strong, kMost);
}

TEST_CASE("backward kernels with a decay a token or a head, and without") {
  BackwardShape shape = shapeOf(Gate::Token, 150, 48, 32, 0.05);
  shape.heads = 4;
  shape.qkHeads = 2;
  check<Bf16, 64, false>(shape);
  shape.gate = Gate::Head;
  check<Fp16, 64, false>(shape);
  shape.gate = Gate::None;
  shape.batch = 2;
  shape.states = false;
  check<Bf16, 64, false>(shape);
}

TEST_CASE("backward kernels of heads in several blocks") {
  BackwardShape shape = shapeOf(Gate::Token, 70, 256, 144, 0.05);
  shape.heads = 2;
  check<Bf16, 128, false>(shape);
  shape.gate = Gate::Channel;
  check<Bf16, 128, true>(shape);
}

TEST_CASE("backward kernels keep packed sequences apart") {
  BackwardShape packed = shapeOf(Gate::Channel, 150, 64, 64, 0.05);
  packed.starts = {0, 5, 64, 65, 130};
  checkSequencesApart<Bf16, Kernels<Bf16, 64, true>, true>(packed);
  packed.heads = packed.qkHeads = 2;
  packed.starts = {70};
  packed.decay = 30;
  packed.gateType = seqparBfloat16;
  checkSequencesApart<Fp16, Kernels<Fp16, 64, true>, true>(packed);
  packed.gateType = seqparFloat32;
  for (const Gate gate : {Gate::Token, Gate::Head, Gate::None}) {
    packed.gate = gate;
    packed.decay = 0.05;
    packed.starts = {20, 21, 130};
    checkSequencesApart<Bf16, Kernels<Bf16, 64, false>, false>(packed);
  }
  packed.gate = Gate::Token;
  checkSequencesApart<float, Kernels<float, 128, false>, false>(packed);
  packed.gate = Gate::Channel;
  checkSequencesApart<float, Kernels<float, 128, true>, true>(packed);
}

TEST_CASE("backward kernels in fp32") {
  check<float, 128, true>(shapeOf(Gate::Channel, 90, 64, 64, 0.05));
  BackwardShape shape = shapeOf(Gate::Token, 70, 144, 48, 1);
  shape.starts = {9};
  check<float, 128, false>(shape);
}

TEST_CASE("an exception of an emulated thread ends the launch") {
  CHECK_THROWS_WITH(emulator::run(2, 64, 0, 1,
                                  [] {
                                    if (ptx::thread() == 40) throw std::logic_error("thread 40");
                                    ptx::syncthreads();
                                  }),
                    "thread 40");
}

TEST_CASE("an emulated CTA finds threads that wait for each other") {
  CHECK_THROWS(emulator::run(1, 64, 0, 1, [] {
    if (ptx::thread() < 32) ptx::syncthreads();
  }));
}
