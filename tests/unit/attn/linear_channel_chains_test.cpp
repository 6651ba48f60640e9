// The sm_90 kernels for outputs of heads with channel decays in chains, on emulated CTAs, compared with the reference
// in fp64.
#include "common/covering.h"
#include "kernels/attn/linear/chunks/channel_chain_sm90.h"
#include "kernels/attn/linear/chunks/channel_chain_tail_sm90.h"
#include "kernels/attn/linear/chunks/channel_operands_sm90.h"
#include "linear_chunks_check.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

/// kBlocks: of 128 channels of keys. partChunks: ChannelChainTask::partChunks; 0: one part. notFinite: number of the
/// first outputs, which are not finite.
template <int kBlocks = 2>
void checkCase(const BackwardCase& c, uint64_t seed, int partChunks, size_t notFinite = 0) {
  INFO(c.shape.name() << ", seed " << seed << ", parts of " << partChunks);
  ChunksRun run(c, false, seed);
  using Operands = forward_sm90::ChannelOperandsKernel<Bf16, kBlocks>;
  using Chain = forward_sm90::ChannelChainKernel<Bf16, kBlocks>;
  using Tail = forward_sm90::ChannelChainTailKernel<Bf16, kBlocks>;
  using Record = forward_sm90::ChannelRecord<Bf16, kBlocks>;
  forward_sm90::ChannelChainTask chains;
  REQUIRE(sm90::encodeMaps<Bf16>(chains, run.task));
  chains.to.finalState = run.finalState();
  const bool saves = seed % 4 != 0;
  std::vector<float> saved(c.stateGradient.size(), NAN);
  chains.saved = saves ? saved.data() : nullptr;
  chains.partChunks = partChunks > 0 ? partChunks : chains.chunks();
  chains.parts = std::max((chains.chunks() + chains.partChunks - 1) / chains.partChunks, 1);
  const auto records = static_cast<size_t>(Operands::itemsOf(chains));
  std::vector<Record> memory(records);
  std::vector<float> prefixes(records * Record::kChannels, NAN), partDecays(prefixes.size(), NAN),
      partStates(static_cast<size_t>(forward_sm90::chainsOf<1>(chains) * chains.parts) * Record::kChannels * 64, NAN);
  std::memset(static_cast<void*>(memory.data()), 0xff, records * sizeof(Record));
  chains.records = reinterpret_cast<char*>(memory.data());
  chains.prefixes = prefixes.data();
  chains.partDecays = partDecays.data();
  chains.partStates = partStates.data();
  emulator::run(static_cast<int>(records), Operands::kThreads, sizeof(typename Operands::Memory), seed,
                [&] { Operands::run(chains); });
  emulator::run(2, Chain::kThreads, sizeof(typename Chain::Memory), seed, [&] { Chain::run(chains); });
  if (chains.parts > 1) {
    emulator::run(static_cast<int>(Tail::itemsOf(chains)), Tail::kThreads, sizeof(typename Tail::Memory), seed,
                  [&] { Tail::run(chains); });
  }
  run.check(notFinite);
  if (!saves || notFinite > 0) return;
  std::vector<float> initial = c.initial;
  initial.resize(saved.size());
  CHECK(saved == initial);
}
template <int kBlocks = 2>
void checkChains(BackwardShape shape, uint64_t seed, int partChunks = 0) {
  shape.segmentTokens = std::max<int64_t>((shape.tokens + 63) / 64 * 64, 64);
  checkCase<kBlocks>(BackwardCase(shape, seed), seed, partChunks);
}

BackwardShape shapeOfHeads(int64_t tokens, int heads, int qkHeads, double decay) {
  BackwardShape shape = shapeOf(Gate::Channel, tokens, 256, 64, decay);
  shape.heads = heads;
  shape.qkHeads = qkHeads;
  return shape;
}

}  // namespace

TEST_CASE("outputs of heads with channel decays in one chain each") {
  const Seed seed;
  checkChains(shapeOfHeads(460, 2, 1, 0.05), seed);
  BackwardShape shape = shapeOfHeads(130, 2, 2, 0.2);
  shape.batch = 2;
  shape.dv = 128;
  shape.dk = 144;
  shape.states = false;
  shape.gateType = seqparBfloat16;
  checkChains(shape, seed);
  shape.tokens = 1;
  checkChains(shape, seed);
  shape.dk = 112;
  shape.tokens = 150;
  checkChains<1>(shape, seed);
}

TEST_CASE("outputs of heads with strong channel decays in one chain each") {
  const Seed seed;
  for (const double decay : thinned({2.0, 0.8, 30.0, kZeros})) checkChains(shapeOfHeads(200, 1, 1, decay), seed);
  BackwardShape shape = shapeOfHeads(150, 1, 1, 0.05);
  shape.mixed = true;
  checkChains(shape, seed);
  shape.gateType = seqparBfloat16;
  shape.dk = 128;
  checkChains<1>(shape, seed);
}

TEST_CASE("outputs of heads with channel decays in parts") {
  const Seed seed;
  for (const double decay : thinned({0.05, 0.002, 30.0, kZeros})) checkChains(shapeOfHeads(600, 1, 1, decay), seed, 3);
  BackwardShape shape = shapeOfHeads(390, 2, 2, 0.01);
  shape.batch = 2;
  shape.dk = 208;
  shape.dv = 128;
  checkChains(shape, seed, 2);
  shape.mixed = true;
  shape.dk = 80;
  checkChains<1>(shape, seed, 5);
}

TEST_CASE("channel decays of 0 discard states that are not finite") {
  const Seed seed;
  for (const int64_t start : thinned<int64_t>({40, 5, 64, 150})) {
    BackwardShape shape = shapeOfHeads(210, 1, 1, 0.05);
    shape.segmentTokens = 256;
    BackwardCase c(shape, seed);
    for (float& number : c.initial) number = start % 2 == 0 ? NAN : INFINITY;
    auto* const gates = reinterpret_cast<float*>(c.gates.data()) + start * shape.dk;
    std::fill(gates, gates + shape.dk, -INFINITY);
    c.inputs.begins.assign(static_cast<size_t>(shape.tokens), 0);
    c.inputs.begins[static_cast<size_t>(start)] = 1;
    for (const int partChunks : {0, 1}) checkCase(c, seed, partChunks, static_cast<size_t>(start * shape.dv));
  }
}
