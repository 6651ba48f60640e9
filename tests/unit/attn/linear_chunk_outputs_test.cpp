// The sm_90 kernels of a forward by states of chunks, on an emulated CTA, compared with the reference in fp64.
#include "common/covering.h"
#include "kernels/attn/linear/chunks/chunk_outputs_sm90.h"
#include "linear_chunks_check.h"
#include "random_heads.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

template <int kHeads, bool kGated>
void checkOutputs(BackwardShape shape, uint64_t seed) {
  INFO(shape.name() << ", seed " << seed);
  shape.segmentTokens = std::max<int64_t>((shape.tokens + 63) / 64 * 64, 64);
  const BackwardCase c(shape, seed);
  ChunksRun run(c, kGated, seed);
  Task& task = run.task;
  task.together = kHeads;
  sm90::ChunkStatesTask states;
  REQUIRE(sm90::encodeMaps<Bf16>(states, task));
  states.to = chunkStatesOf(task, forward_sm90::kOutputTiles);
  states.to.directions = 1;
  std::vector<uint16_t> images(static_cast<size_t>(states.to.bytes(task) / 2), 0xffff);
  states.to.states = images.data();
  states.to.finalState = run.finalState();
  using States = sm90::ChunkStatesKernel<Bf16, kHeads, kGated>;
  using Outputs = forward_sm90::ChunkOutputsKernel<Bf16, kGated>;
  emulator::run(2, States::kThreads, sizeof(typename States::Memory), seed, [&] { States::run(states); });
  emulator::run(3, Outputs::kThreads, sizeof(typename Outputs::Memory), seed, [&] { Outputs::run(states); });
  run.check();
}

template <int kHeads, bool kGated>
void checkOutputs(const BackwardShape& shape) {
  const Seed seed;
  checkOutputs<kHeads, kGated>(shape, seed);
}

BackwardShape shapeOfHeads(int64_t tokens, int heads, int qkHeads, double decay) {
  BackwardShape shape = shapeOf(Gate::Token, tokens, 256, 64, decay);
  shape.heads = heads;
  shape.qkHeads = qkHeads;
  return shape;
}

}  // namespace

TEST_CASE("outputs from states of chunks, for pairs of heads") {
  checkOutputs<kPair, true>(shapeOfHeads(460, 6, 1, 0.05));
  checkOutputs<kPair, false>(shapeOfHeads(130, 4, 2, 0.5));
  BackwardShape shape = shapeOfHeads(200, 4, 2, 0.05);
  shape.batch = 2;
  shape.states = false;
  shape.dk = 144;
  checkOutputs<kPair, true>(shape);
  for (const Gate gate : thinned({Gate::None, Gate::Head})) {
    shape.gate = gate;
    shape.states = true;
    checkOutputs<kPair, false>(shape);
  }
  shape.tokens = 1;
  checkOutputs<kPair, false>(shape);
}

TEST_CASE("outputs from states of chunks with strong decays") {
  for (const double decay : thinned({30.0, 2.0, kZeros})) {
    checkOutputs<kPair, true>(shapeOfHeads(260, 2, 1, decay));
    checkOutputs<kPair, false>(shapeOfHeads(260, 2, 1, decay));
  }
}

TEST_CASE("outputs from states of chunks with blocks of values") {
  BackwardShape shape = shapeOfHeads(300, 3, 1, 0.05);
  shape.dk = 144;
  shape.dv = 128;
  checkOutputs<1, true>(shape);
  shape.dk = 192;
  shape.dv = 80;
  checkOutputs<1, false>(shape);
  shape.dv = 192;
  checkOutputs<1, true>(shape);
}

TEST_CASE("outputs from states of chunks with random shapes") {
  const Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < (kSanitized ? 2 : 4); ++i) {
    const bool pairs = i % 2 == 0;
    const std::vector<int> keys = {144, 160, 192, 208, 256};
    const BackwardShape shape = pairs ? drawHeads({{2, 4, 8, 16}, keys, {64}, false}, random)
                                      : drawHeads({{1, 3, 5, 7}, keys, {64, 80, 128, 192}, false}, random);
    if (pairs) {
      shape.inputGates ? checkOutputs<kPair, true>(shape, seed) : checkOutputs<kPair, false>(shape, seed);
    } else {
      shape.inputGates ? checkOutputs<1, true>(shape, seed) : checkOutputs<1, false>(shape, seed);
    }
  }
}
