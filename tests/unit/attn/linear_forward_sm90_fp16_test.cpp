// The forward kernels of linear attention for compute capability 9.0 in fp16, and pass 1 of their backward pass, on an
// emulated CTA.
#include "common/covering.h"
#include "linear_forward_sm90_check.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::test;
using seqpar::test::kSanitized;
using seqpar::test::thinned;

namespace {

using Half = Sm90Of<Float16>;

ForwardSpec halfSpec(Gate gate, int64_t tokens, int dk, int dv, Decays decays) {
  ForwardSpec spec = specOf(gate, tokens, dk, dv, decays);
  spec.type = seqparFloat16;
  return spec;
}

}  // namespace

TEST_CASE("forward kernels of sm_90 in fp16 with a decay a token or a head, and without") {
  for (const Gate gate : thinned({Gate::Head, Gate::Token, Gate::None})) {
    checkForward<Half>(halfSpec(gate, 200, 128, 128, Decays::Typical), Maps::PerSegment, 2, MapFormat::Registers);
  }
  for (const Decays decays : thinned({Decays::Mixed, Decays::Slow, Decays::Strong, Decays::Thirty})) {
    checkForward<Half>(halfSpec(Gate::Token, 130, 128, 128, decays), Maps::PerSegment);
  }
  ForwardSpec spec = halfSpec(Gate::Token, 100, 96, 64, Decays::Strong);
  spec.batch = 2;
  spec.headsFirst = true;
  checkForward<Half>(spec, Maps::Prefix);
}

TEST_CASE("forward kernels of sm_90 in fp16 with a decay a channel") {
  for (const Decays decays : thinned({Decays::Mixed, Decays::Typical, Decays::Slow, Decays::Medium, Decays::Strong})) {
    checkForward<Half>(halfSpec(Gate::Channel, 130, 128, 128, decays), Maps::PerSegment);
  }
  ForwardSpec spec = halfSpec(Gate::Channel, 200, 80, 144, Decays::Typical);
  spec.gateType = seqparBfloat16;
  spec.heads = 2;
  spec.segmentTokens = 128;
  checkForward<Half>(spec, Maps::Prefix);
}

TEST_CASE("forward kernels of sm_90 in fp16 for two short heads with a decay a channel") {
  for (const Decays decays : thinned({Decays::Mixed, Decays::Typical, Decays::Strong})) {
    ForwardSpec spec = halfSpec(Gate::Channel, 300, 64, 64, decays);
    spec.heads = spec.qkHeads = 3;  // the last CTA has one
    spec.gateType = seqparBfloat16;
    spec.segmentTokens = 128;
    checkForward<Half>(spec, Maps::Prefix, 1);
  }
}

TEST_CASE("forward kernels of sm_90 in fp16 with more than 128 channels") {
  for (const Gate gate : {Gate::Channel, Gate::Token, Gate::None}) {
    // Windows have 1024 tokens.
    ForwardSpec spec = halfSpec(gate, gate == Gate::Channel ? 1100 : 330, 256, 32, Decays::Typical);
    spec.segmentTokens = 1152;
    checkForward<Half>(spec, Maps::PerSegment);
    spec = halfSpec(gate, 150, gate == Gate::None ? 144 : 192, 144, Decays::Mixed);
    spec.heads = 2;
    spec.segmentTokens = 128;
    checkForward<Half>(spec, Maps::Prefix, 3);
  }
}

TEST_CASE("forward kernels of sm_90 in fp16 keep small and large values") {
  for (const Gate gate : {Gate::Channel, Gate::Token, Gate::None}) {
    for (const bool isShort : {false, true}) {
      if (isShort && gate != Gate::Channel) continue;
      for (const auto& [size, tilt] : {std::pair{0x1p-9F, 1.0F}, {0x1p5F, 1.0F}, {1.0F, 0x1p11F}, {1.0F, 0x1p-10F}}) {
        ForwardSpec spec = halfSpec(gate, 150, isShort ? 64 : 128, isShort ? 64 : 48, Decays::Typical);
        spec.heads = spec.qkHeads = isShort ? 2 : 1;
        spec.size = size;
        spec.tilt = tilt;
        checkForward<Half>(spec, Maps::PerSegment);
        for (const Decays decays : {Decays::Medium, Decays::Mixed}) {
          spec.decays = decays;
          checkForward<Half>(spec, Maps::Prefix);
        }
      }
    }
  }
}

TEST_CASE("forward kernels of sm_90 in fp16 keep the state of few tokens under strong decays") {
  ForwardSpec spec = halfSpec(Gate::Head, 2, 128, 256, Decays::Strong);
  spec.batch = 2;
  spec.heads = spec.qkHeads = 2;
  spec.headsFirst = true;
  spec.initial = false;
  spec.seed = 3081272529185892442U;  // with small values in both tokens' columns
  checkForwardOf<Half>(spec, Maps::Prefix);
  for (const int64_t tokens : {5, 100}) {
    for (const float size : {1.0F, 0x1p-9F}) {
      spec = halfSpec(Gate::Token, tokens, 128, 64, Decays::Strong);
      spec.size = size;
      checkForward<Half>(spec, Maps::Prefix);
    }
  }
}

TEST_CASE("forward kernels of sm_90 in fp16 with packed sequences") {
  for (const Gate gate : {Gate::Channel, Gate::Token, Gate::Head, Gate::None}) {
    ForwardSpec spec = halfSpec(gate, 210, 128, 128, Decays::Typical);
    spec.sequences = 4;
    checkForward<Half>(spec, Maps::PerSegment);
  }
}

TEST_CASE("forward kernels of sm_90 in fp16 keep packed sequences apart") {
  for (const Gate gate : {Gate::Channel, Gate::Token, Gate::Head, Gate::None}) {
    for (const Decays decays : {Decays::Typical, Decays::Mixed}) {
      if (decays == Decays::Mixed && (gate == Gate::Head || gate == Gate::None)) continue;
      ForwardSpec spec = halfSpec(gate, 170, 128, 80, decays);
      spec.sequences = decays == Decays::Mixed ? 6 : 3;
      checkSequencesApart<Half>(spec, decays == Decays::Typical ? Maps::PerSegment : Maps::Prefix);
    }
  }
  ForwardSpec spec = halfSpec(Gate::Channel, 170, 64, 48, Decays::Mixed);
  spec.heads = spec.qkHeads = 2;
  spec.sequences = 6;
  checkSequencesApart<Half>(spec, Maps::Prefix);
}

TEST_CASE("forward kernels of sm_90 in fp16 with random shapes") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  const auto one = [&](const auto& from) { return from[random() % std::size(from)]; };
  for (int i = 0; i < (kSanitized ? 2 : 6); ++i) {
    constexpr int kKeys[] = {16, 64, 96, 128, 192, 256}, kValues[] = {16, 64, 80, 128, 256};
    constexpr int64_t kTokens[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 127, 200};
    constexpr Decays kDecays[] = {Decays::Typical, Decays::Slow,   Decays::Medium,
                                  Decays::Strong,  Decays::Thirty, Decays::Mixed};
    constexpr Gate kGates[] = {Gate::Head, Gate::Token, Gate::Token, Gate::Channel, Gate::Channel, Gate::None};
    ForwardSpec spec = halfSpec(one(kGates), one(kTokens), one(kKeys), one(kValues), one(kDecays));
    if (spec.gate == Gate::Channel && random() % 2 == 0) spec.gateType = seqparBfloat16;
    spec.batch = 1 + static_cast<int64_t>(random() % 2);
    spec.heads = 1 + static_cast<int>(random() % 2);
    spec.qkHeads = random() % 2 == 0 ? spec.heads : 1;
    spec.headsFirst = random() % 2 == 0;
    spec.initial = random() % 2 == 0;
    spec.segmentTokens = 64 * static_cast<int64_t>(1 + random() % 4);
    if (spec.batch == 1 && random() % 3 == 0) spec.sequences = 1 + static_cast<int>(random() % 6);
    spec.seed = random();
    checkForwardOf<Half>(spec, random() % 2 == 0 ? Maps::Prefix : Maps::PerSegment, 1 + static_cast<int>(random() % 3));
  }
}

TEST_CASE("pass 1 of the backward on sm_90 in fp16") {
  for (const auto& [gate, heads] :
       {std::pair{Gate::Channel, 1}, {Gate::Channel, 3}, {Gate::Token, 1}, {Gate::Token, 2}, {Gate::None, 2}}) {
    const bool joined = gate == Gate::Channel && heads > 1;
    auto shape = backward::test::shapeOf(gate, 130, joined ? 64 : heads == 2 ? 256 : 128, heads > 1 ? 64 : 128, 0.05);
    shape.type = seqparFloat16;
    shape.segmentTokens = 192;
    shape.heads = shape.qkHeads = heads;
    checkStateGradients<Float16>(shape, 0x1p-10);
  }
}
