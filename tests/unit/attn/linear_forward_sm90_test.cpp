// The forward kernels of linear attention for compute capability 9.0, and pass 1 of their backward pass, on an
// emulated CTA.
#include "common/covering.h"
#include "linear_forward_sm90_check.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::test;
using seqpar::test::thinned;

namespace {

using Sm90 = Sm90Of<Bfloat16>;

}  // namespace

TEST_CASE("forward kernels of sm_90 with a decay a channel") {
  for (const Decays decays : thinned({Decays::Mixed, Decays::Typical, Decays::Slow, Decays::Strong})) {
    checkForward<Sm90>(specOf(Gate::Channel, 130, 128, 128, decays), Maps::PerSegment);
  }
  ForwardSpec spec = specOf(Gate::Channel, 200, 80, 144, Decays::Typical);
  spec.gateType = seqparBfloat16;
  spec.heads = 2;
  spec.segmentTokens = 128;
  checkForward<Sm90>(spec, Maps::Prefix);
}

TEST_CASE("forward kernels of sm_90 for two short heads with a decay a channel") {
  for (const Decays decays : thinned({Decays::Mixed, Decays::Typical, Decays::Slow, Decays::Strong})) {
    ForwardSpec spec = specOf(Gate::Channel, 300, 64, 64, decays);
    spec.heads = spec.qkHeads = 2;
    checkForward<Sm90>(spec, Maps::PerSegment);
    spec.heads = spec.qkHeads = 3;  // the last CTA has one
    spec.segmentTokens = 128;
    spec.gateType = seqparBfloat16;
    checkForward<Sm90>(spec, Maps::Prefix, 1);
  }
  ForwardSpec spec = specOf(Gate::Channel, 600, 48, 64, Decays::Thirty);
  spec.batch = 2;
  spec.heads = 4;
  spec.qkHeads = 2;
  spec.headsFirst = true;
  spec.segmentTokens = 192;
  checkForward<Sm90>(spec, Maps::PerSegment, 1);
  spec = specOf(Gate::Channel, 170, 64, 48, Decays::Mixed);
  spec.heads = spec.qkHeads = 2;
  spec.sequences = 6;
  checkSequencesApart<Sm90>(spec, Maps::Prefix);
}

TEST_CASE("forward kernels of sm_90 with mild and strong chunks in turns") {
  ForwardSpec spec = specOf(Gate::Channel, 430, 128, 128, Decays::Alternating);
  spec.segmentTokens = 448;
  checkForward<Sm90>(spec, Maps::PerSegment);
  spec.tokens = 400;
  spec.dk = spec.dv = 64;
  spec.heads = spec.qkHeads = 2;
  spec.gateType = seqparBfloat16;
  checkForward<Sm90>(spec, Maps::PerSegment);
  spec = specOf(Gate::Channel, 1300, 192, 64, Decays::Alternating);
  spec.segmentTokens = 1344;
  checkForward<Sm90>(spec, Maps::PerSegment);
}

TEST_CASE("forward kernels of sm_90 drop states that are not finite") {
  for (const Decays decays : thinned({Decays::Typical, Decays::Alternating, Decays::Strong})) {
    ForwardSpec spec = specOf(Gate::Channel, 150, 128, 64, decays);
    spec.segmentTokens = 192;
    checkForgets<Sm90>(spec, Maps::PerSegment);
    spec.dk = spec.dv = 64;
    spec.heads = spec.qkHeads = 2;
    checkForgets<Sm90>(spec, Maps::PerSegment);
  }
}

TEST_CASE("forward kernels of sm_90 with a decay a token or a head, and without") {
  for (const Gate gate : thinned({Gate::Head, Gate::Token, Gate::None})) {
    checkForward<Sm90>(specOf(gate, 200, 128, 128, Decays::Typical), Maps::PerSegment, 2, MapFormat::Registers);
  }
  checkForward<Sm90>(specOf(Gate::Token, 130, 128, 128, Decays::Mixed), Maps::PerSegment);
  ForwardSpec spec = specOf(Gate::Token, 100, 96, 64, Decays::Strong);
  spec.batch = 2;
  spec.headsFirst = true;
  checkForward<Sm90>(spec, Maps::Prefix);
}

TEST_CASE("forward kernels of sm_90 with more than 128 channels") {
  for (const Gate gate : thinned({Gate::Channel, Gate::Token, Gate::Head, Gate::None}, 2)) {
    const bool decays = gate == Gate::Channel || gate == Gate::Token;
    // Windows have 1024 tokens.
    ForwardSpec spec = specOf(gate, decays ? 1300 : 330, 256, 32, decays ? Decays::Mixed : Decays::Typical);
    spec.segmentTokens = 1152;
    checkForward<Sm90>(spec, Maps::PerSegment);
    spec = specOf(gate, 150, gate == Gate::None ? 144 : 192, 144, Decays::Typical);
    spec.heads = 2;
    spec.segmentTokens = 128;
    if (gate == Gate::Channel) spec.gateType = seqparBfloat16;
    checkForward<Sm90>(spec, Maps::Prefix, 3);
    spec = specOf(gate, 700, 256, 32, decays ? Decays::Strong : Decays::Slow);
    spec.sequences = 3;
    checkForward<Sm90>(spec, Maps::PerSegment, 1);
  }
  for (const Gate gate : thinned({Gate::None, Gate::Token})) {
    ForwardSpec spec =
        specOf(gate, gate == Gate::None ? 600 : 1250, gate == Gate::None ? 256 : 208, 64, Decays::Thirty);
    spec.heads = gate == Gate::None ? 4 : 2;
    spec.qkHeads = spec.heads / 2;
    spec.segmentTokens = gate == Gate::None ? 320 : 2048;
    spec.inputGates = gate == Gate::None;
    checkForward<Sm90>(spec, Maps::PerSegment, 3);
  }
}

TEST_CASE("forward kernels of sm_90 with an input gate") {
  for (const Gate gate : thinned({Gate::Head, Gate::Token, Gate::None})) {
    ForwardSpec spec = specOf(gate, 200, 128, 128, Decays::Typical);
    spec.inputGates = true;
    checkForward<Sm90>(spec, Maps::PerSegment, 2, gate == Gate::Token ? MapFormat::Registers : MapFormat::RowMajor);
  }
  ForwardSpec spec = specOf(Gate::Token, 170, 96, 64, Decays::Mixed);
  spec.heads = 2;
  spec.sequences = 3;
  spec.inputGates = true;
  checkForward<Sm90>(spec, Maps::Prefix);
  spec = specOf(Gate::Token, 200, 256, 64, Decays::Typical);
  spec.segmentTokens = 128;
  spec.inputGates = true;
  checkForward<Sm90>(spec, Maps::PerSegment);
}

TEST_CASE("forward kernels of sm_90 with pairs of heads that share queries and keys") {
  for (const Gate gate : {Gate::Token, Gate::Head, Gate::None}) {
    ForwardSpec spec = specOf(gate, 200, 128, 64, gate == Gate::Token ? Decays::Mixed : Decays::Typical);
    spec.heads = 4;
    spec.qkHeads = gate == Gate::None ? 1 : 2;
    spec.inputGates = gate != Gate::Head;
    spec.headsFirst = gate == Gate::Head;
    spec.sequences = gate == Gate::Head ? 3 : 0;
    checkForward<Sm90>(spec, gate == Gate::Token ? Maps::PerSegment : Maps::Prefix);
  }
  ForwardSpec spec = specOf(Gate::Token, 130, 64, 64, Decays::Typical);
  spec.heads = 2;
  spec.qkHeads = 1;
  spec.inputGates = true;
  checkForward<Sm90>(spec, Maps::PerSegment, 1);
  spec = specOf(Gate::Token, 500, 96, 64, Decays::Thirty);
  spec.heads = 2;
  spec.qkHeads = 1;
  spec.inputGates = true;
  spec.segmentTokens = 192;
  checkForward<Sm90>(spec, Maps::PerSegment, 1);
}

TEST_CASE("forward kernels of sm_90 keep packed sequences apart") {
  for (const Gate gate : {Gate::Channel, Gate::Token, Gate::Head, Gate::None}) {
    for (const Decays decays : {Decays::Typical, Decays::Mixed}) {
      if (decays == Decays::Mixed && (gate == Gate::Head || gate == Gate::None)) continue;
      ForwardSpec spec = specOf(gate, 170, 128, 80, decays);
      spec.sequences = decays == Decays::Mixed ? 6 : 3;
      if (gate == Gate::Channel && decays == Decays::Mixed) spec.gateType = seqparBfloat16;
      checkSequencesApart<Sm90>(spec, decays == Decays::Typical ? Maps::PerSegment : Maps::Prefix);
    }
  }
}

TEST_CASE("forward kernels of sm_90 keep packed sequences of pairs of heads apart") {
  for (const Decays decays : {Decays::Typical, Decays::Thirty}) {
    ForwardSpec spec = specOf(Gate::Token, 300, 128, 64, decays);
    spec.heads = 2;
    spec.qkHeads = 1;
    spec.sequences = 3;
    checkSequencesApart<Sm90>(spec, Maps::PerSegment);
  }
}

TEST_CASE("forward kernels of sm_90 with packed sequences") {
  for (const Gate gate : {Gate::Channel, Gate::Token}) {
    ForwardSpec spec = specOf(gate, 210, 128, 128, Decays::Typical);
    spec.sequences = 4;
    checkForward<Sm90>(spec, Maps::PerSegment);
  }
}

TEST_CASE("forward kernels of sm_90 with many short items per CTA and strong decays") {
  for (const Gate gate : {Gate::Channel, Gate::Token}) {
    ForwardSpec spec = specOf(gate, 1000, 128, 64, Decays::Thirty);
    spec.segmentTokens = 192;
    checkForward<Sm90>(spec, Maps::PerSegment, 1);
    spec.heads = 2;
    spec.qkHeads = 1;
    if (gate == Gate::Token) checkForward<Sm90>(spec, Maps::PerSegment, 1);  // a pair
  }
}

TEST_CASE("pass 1 of the backward on sm_90 with packed sequences") {
  for (const Gate gate : {Gate::Channel, Gate::Token, Gate::None}) {
    auto shape = backward::test::shapeOf(gate, 400, 128, 96, 0.05);
    shape.starts = {30, 40, 200, 390};
    shape.content = Maps::PerSegment;
    const seqpar::test::Seed seed;
    INFO(shape.name() << ", seed " << seed);
    const seqpar::test::BackwardCase c(shape, seed);
    REQUIRE(c.segments.count > 4);
    SegmentStates pass;
    pass.problem = c.problem(c.q.data(), c.k.data(), c.v.data(), c.gates.data());
    pass.segments = c.segmentsAt(c.spans.data());
    pass.heads = {0, 1};
    std::vector<float> states(c.after.size(), NAN), logs(c.afterLog.size(), NAN);
    pass.maps = {states.data(), logs.data()};
    runStates<Bfloat16, Pass::Backward>(pass, pass.problem.q, c.dOutput(c.dOut.data()), 2, seed);
    // The first segment's map is undefined.
    const auto known = [&](const std::vector<float>& all) {
      const auto first = static_cast<int64_t>(all.size() / static_cast<size_t>(c.segments.count));
      return std::vector<double>(all.begin() + first, all.end());
    };
    CHECK(seqpar::test::relativeError(known(states), known(c.after)) <= 0x1p-7);
    const auto found = known(logs), expected = known(c.afterLog);
    for (size_t i = 0; i < found.size(); ++i) CHECK(std::exp(found[i]) == Approx(std::exp(expected[i])).margin(1e-4));
  }
}

TEST_CASE("pass 1 of the backward on sm_90") {
  for (const auto& [gate, heads] :
       {std::pair{Gate::Channel, 1}, {Gate::Channel, 3}, {Gate::Token, 1}, {Gate::Token, 4}, {Gate::None, 2}}) {
    const bool joined = gate == Gate::Channel && heads > 1;
    auto shape = backward::test::shapeOf(gate, 130, joined ? 64 : heads == 4 ? 256 : 128, heads > 1 ? 64 : 128, 0.05);
    shape.segmentTokens = 192;
    shape.heads = heads;
    shape.qkHeads = joined ? heads : (heads + 1) / 2;  // pairs of heads
    checkStateGradients<Bfloat16>(shape, 0x1p-7);
  }
}
