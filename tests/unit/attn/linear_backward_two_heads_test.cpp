// The backward kernels of sm_90 that process two short heads per CTA, with decays of channels, on an emulated CTA.
#include "common/covering.h"
#include "linear_backward_sm90_check.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

template <class T>
void checkTwoHeads(const BackwardShape& shape, double mostOfTokens = 0) {
  checkKernels<T, KernelsSm90<T, true, true>, true>(shape, mostOfTokens);
}
BackwardShape shapeOfTwo(int64_t tokens, double decay) {
  BackwardShape shape = shapeOf(Gate::Channel, tokens, 64, 64, decay);
  shape.heads = shape.qkHeads = 2;
  return shape;
}

}  // namespace

TEST_CASE("backward kernels of sm_90 for two short heads with a decay a channel") {
  checkTwoHeads<Bf16>(shapeOfTwo(130, 0.05));
  BackwardShape shape = shapeOfTwo(330, 0.05);
  shape.segmentTokens = 384;
  shape.heads = shape.qkHeads = 3;  // the last CTA has one
  shape.gateType = seqparBfloat16;
  checkTwoHeads<Bf16>(shape);
  checkTwoHeads<Fp16>(shapeOfTwo(130, 0.02));
  shape = shapeOfTwo(200, 0.05);
  shape.batch = 2;
  shape.heads = shape.qkHeads = 3;
  shape.segmentTokens = 128;
  shape.states = false;
  checkTwoHeads<Bf16>(shape);
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
  for (const double decay : thinned({30.0, 5.0})) checkTwoHeads<Bf16>(shapeOfTwo(decay > 5 ? 100 : 190, decay));
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
