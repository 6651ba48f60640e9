// The sm_90 kernels for outputs of heads with channel decays in chains, on emulated CTAs, compared with the reference
// in fp64.
#include "common/covering.h"
#include "kernels/attn/linear/backward/channel_scale_sm90.h"
#include "kernels/attn/linear/backward/channel_states_sm90.h"
#include "kernels/attn/linear/chunks/channel_chain_pieces_sm90.h"
#include "kernels/attn/linear/chunks/channel_chain_sm90.h"
#include "kernels/attn/linear/chunks/channel_operands_sm90.h"
#include "linear_chunks_check.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

/// The maps of pieces, applied to the case's initial state, yield this final state. Maps before one that forgets are
/// undefined.
void checkMaps(const BackwardCase& c, const forward_sm90::ChannelChainTask& chains, const float* finalState) {
  const auto dk = static_cast<size_t>(chains.dk), dv = static_cast<size_t>(chains.dv),
             pieces = static_cast<size_t>(chains.allPieces());
  const size_t heads = c.stateGradient.size() / (dk * dv);
  std::vector<double> found, expected;
  for (size_t head = 0; head < heads; ++head) {
    for (size_t i = 0; i < dk * dv; ++i) {
      double state = 0, decay = 1;
      for (size_t map = (head + 1) * pieces; map-- > head * pieces && decay > 0x1p-126;) {
        state += decay * chains.maps.states[map * dk * dv + i];
        decay *= std::exp(double{chains.maps.transitions[map * dk + i / dv]});
      }
      if (!c.initial.empty() && decay > 0) state += decay * c.initial[head * dk * dv + i];
      found.push_back(state);
      expected.push_back(finalState[head * dk * dv + i]);
    }
  }
  checkError("maps", found, expected, 0x1p-12);
}

void* aligned(std::vector<uint16_t>& numbers) {
  auto* data = numbers.data();
  while (reinterpret_cast<uintptr_t>(data) % 128 != 0) ++data;
  return data;
}
/// Of images; those of columns after the last one are 0.
std::vector<double> numbersOf(std::vector<uint16_t>& images) {
  const auto* const data = static_cast<const uint16_t*>(aligned(images));
  std::vector<double> numbers;
  for (size_t i = 0; i < images.size() - 64; ++i) numbers.push_back(ptx::lowOf<Bf16>(data[i]));
  return numbers;
}

/// kBlocks: of 128 channels of keys. partChunks: ChannelChainTask::partChunks; 0: one part. pieces: of a part.
/// notFinite: number of the first outputs, which are not finite. Record: the forward's, or the backward's.
template <int kBlocks = 2, class Record = forward_sm90::ChannelRecord<Bf16, kBlocks>>
void checkCase(const BackwardCase& c, uint64_t seed, int partChunks, int pieces = 1, size_t notFinite = 0) {
  INFO(c.shape.name() << ", seed " << seed << ", parts of " << partChunks << ", " << pieces << " pieces each");
  ChunksRun run(c, false, seed);
  using Operands = forward_sm90::ChannelOperandsKernel<Bf16, kBlocks>;
  using Chain = forward_sm90::ChannelChainKernel<Bf16, kBlocks, Record>;
  using Pieces = forward_sm90::ChannelPiecesKernel<Bf16, kBlocks, Record>;
  forward_sm90::ChannelChainTask chains;
  REQUIRE(sm90::encodeMaps<Bf16>(chains, run.task));
  chains.to.finalState = run.finalState();
  const bool saves = seed % 4 != 0;
  std::vector<float> saved(c.stateGradient.size(), NAN);
  chains.saved = saves ? saved.data() : nullptr;
  chains.partChunks = partChunks > 0 ? partChunks : chains.chunks();
  chains.parts = std::max((chains.chunks() + chains.partChunks - 1) / chains.partChunks, 1);
  chains.pieces = pieces;
  chains.pieceChunks = (chains.partChunks + pieces - 1) / pieces;
  chains.lastPart = seed % 3 != 0;
  const auto records = static_cast<size_t>(Operands::itemsOf(chains)),
             heads = static_cast<size_t>(chains.batch * chains.heads), all = static_cast<size_t>(chains.allPieces());
  std::vector<Record> memory(records);
  std::vector<float> decays(heads * all * Record::kChannels, NAN),
      states(static_cast<size_t>(forward_sm90::chainsOf<1>(chains)) * all * Record::kChannels * 64, NAN),
      mapStates(c.stateGradient.size() * all, NAN), mapLogs(mapStates.size() / static_cast<size_t>(chains.dv), NAN);
  std::memset(static_cast<void*>(memory.data()), 0xff, records * sizeof(Record));
  chains.records = reinterpret_cast<char*>(memory.data());
  chains.pieceDecays = decays.data();
  chains.pieceStates = states.data();
  if (chains.lastPart) chains.maps = {mapStates.data(), mapLogs.data()};
  const auto runOperands = [&] {
    emulator::run(static_cast<int>(records), Operands::kThreads, sizeof(typename Operands::Memory), seed,
                  [&] { Operands::run(chains); });
  };
  uint32_t strong = 1;
  std::vector<uint16_t> kept, expected, gradients;  // images of states
  if (seed % 2 == 0) chains.strong = &strong;
  if constexpr (forward_sm90::kHalfDecays<Record>) {
    using Scale = sm90::ChannelScaleKernel<Bf16>;
    sm90::ChannelTask to;
    REQUIRE(sm90::encodeGroup<Bf16>(to, run.task, chunkStatesOf(run.task, 1)));
    to.records = chains.records;
    to.strong = &strong;
    strong = 0;
    emulator::run(static_cast<int>(records), Scale::kThreads, sizeof(typename Scale::Memory), seed,
                  [&] { Scale::run(to); });
    CHECK(strong == 0);
    chains.strong = &strong;
    chains.to = chunkStatesOf(run.task, 1);
    chains.to.finalState = run.finalState();
    const auto elements = static_cast<size_t>(chains.to.bytes(run.task) / 2);
    kept.resize(elements + 64);
    expected.resize(elements + 64);
    chains.to.states = aligned(kept);
    to.chunks = chains.to;
    to.chunks.states = aligned(expected);
    to.chunks.directions = 2;
    gradients.resize(elements + 64);
    to.chunks.gradients = aligned(gradients);
    using States = sm90::ChannelStatesKernel<Bf16, kBlock>;
    emulator::run(2, States::kThreads, sizeof(typename States::Memory), seed, [&] { States::run(to); });
  }
  runOperands();  // without work, if decays are not too strong for the backward's
  if (chains.mapCount() > 0) {
    emulator::run(3, Pieces::kThreads, sizeof(typename Pieces::Memory), seed, [&] { Pieces::run(chains); });
  }
  emulator::run(2, Chain::kThreads, sizeof(typename Chain::Memory), seed, [&] { Chain::run(chains); });
  run.check(notFinite);
  if (notFinite > 0) return;
  if (!kept.empty()) checkError("kept states", numbersOf(kept), numbersOf(expected), 0x1p-10);
  if (chains.lastPart) checkMaps(c, chains, run.finalState());
  if (!saves) return;
  std::vector<float> initial = c.initial;
  initial.resize(saved.size());
  CHECK(saved == initial);
}
template <int kBlocks = 2, class Record = forward_sm90::ChannelRecord<Bf16, kBlocks>>
void checkChains(BackwardShape shape, uint64_t seed, int partChunks = 0, int pieces = 1) {
  shape.segmentTokens = std::max<int64_t>((shape.tokens + 63) / 64 * 64, 64);
  checkCase<kBlocks, Record>(BackwardCase(shape, seed), seed, partChunks, pieces);
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
  for (const double decay : thinned({0.05, 0.002, 30.0, kZeros})) {
    checkChains(shapeOfHeads(600, 1, 1, decay), seed, 4, 1 + seed % 4);
  }
  checkChains(shapeOfHeads(500, 1, 1, 0.5), seed, 5, 3);
  BackwardShape shape = shapeOfHeads(390, 2, 2, 0.01);
  shape.batch = 2;
  shape.dk = 208;
  shape.dv = 128;
  checkChains(shape, seed, 2);
  checkChains(shape, seed, 3, 2);
  shape.mixed = true;
  shape.dk = 80;
  checkChains<1>(shape, seed, 5, 2);
}

TEST_CASE("outputs of heads with channel decays from the operands of the backward") {
  const Seed seed;
  const auto check = [&](const BackwardShape& shape, int partChunks = 0, int pieces = 1) {
    checkChains<2, sm90::ChunkRecord<Bf16>>(shape, seed, partChunks, pieces);
  };
  check(shapeOfHeads(460, 2, 2, 0.05));
  for (const double decay : thinned({0.002, 0.5, 0.05})) check(shapeOfHeads(450, 1, 1, decay), 3, 1 + seed % 3);
  BackwardShape shape = shapeOfHeads(130, 2, 2, 0.2);
  shape.batch = 2;
  shape.dv = 128;
  shape.dk = 144;
  shape.states = false;
  shape.gateType = seqparBfloat16;
  check(shape);
  shape.tokens = 1;
  check(shape);
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
    const auto notFinite = static_cast<size_t>(start * shape.dv);
    checkCase(c, seed, 0, 1, notFinite);
    checkCase(c, seed, 1, 1, notFinite);
    checkCase(c, seed, 2, 2, notFinite);
  }
}
