// The sm_90 kernel for outputs of heads in one chain each, on an emulated CTA, compared with the reference in fp64.
#include "common/covering.h"
#include "kernels/attn/linear/chunks/head_chain_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_tail_sm90.h"
#include "kernels/attn/linear/chunks/wide_chain_sm90.h"
#include "linear_chunk_states_check.h"
#include "linear_chunks_check.h"
#include "random_heads.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

/// kKeyPanels: of 64 channels of keys, 1, 2 or 4. kPanels: 1: items have 64 columns, 2: 80.
template <bool kGated, int kPanels, int kKeyPanels, bool kKeeps = false>
struct KernelOf {
  using Type = forward_sm90::HeadChainKernel<Bf16, kGated, kPanels, kKeyPanels, kKeeps>;
};
template <bool kGated, bool kKeeps>
struct KernelOf<kGated, 1, 4, kKeeps> {
  using Type = forward_sm90::WideChainKernel<Bf16, kGated, kKeeps>;
};

/// The states that the forward keeps for the backward.
class KeptStates {
 public:
  KeptStates(const BackwardCase& c, Task task) : case_(c), task_(task) {
    if (task.dv <= kWideColumns) task_.together = kPair;
    chunks_ = chunkStatesOf(task_, 1);
    states_.assign(static_cast<size_t>(chunks_.bytes(task_) / 2) + 8, 0xffff);
    chunks_.states = states_.data() + (16 - reinterpret_cast<uintptr_t>(states_.data()) % 16) / 2;
  }
  const ChunkStates& chunks() const { return chunks_; }
  /// Those before the first `count` chunks; negative: before all.
  void check(int count) const {
    std::vector<double> found, expected;
    for (int sequence = 0; sequence < task_.batch; ++sequence) {
      for (int head = 0; head < task_.heads; ++head) {
        auto states = recurrence(case_, sequence, head, 1, false);
        states.resize(count < 0 ? states.size() - 1 : static_cast<size_t>(count));
        for (size_t i = 0; i < states.size(); ++i) {
          const StateNumber of{sequence, head, static_cast<int64_t>(i)};
          const auto state = stateIn<Bf16>(static_cast<const uint16_t*>(chunks_.states), task_, chunks_,
                                           task_.together == kPair && task_.dv > 64, of);
          found.insert(found.end(), state.begin(), state.end());
          expected.insert(expected.end(), states[i].begin(), states[i].end());
        }
      }
    }
    checkError("states", found, expected, 0x1p-8, kLeastState);
  }

 private:
  const BackwardCase& case_;
  Task task_;
  ChunkStates chunks_;
  std::vector<uint16_t> states_;
};

/// firstChunks: HeadChainTask::firstChunks.
template <bool kGated, int kPanels, int kKeyPanels>
void checkChains(BackwardShape shape, uint64_t seed, int firstChunks = 0) {
  INFO(shape.name() << ", seed " << seed);
  shape.segmentTokens = std::max<int64_t>((shape.tokens + 63) / 64 * 64, 64);
  const BackwardCase c(shape, seed);
  ChunksRun run(c, kGated, seed);
  forward_sm90::HeadChainTask chains;
  REQUIRE(sm90::encodeMaps<Bf16>(chains, run.task));
  const KeptStates kept(c, run.task);
  const bool fits = shape.dv <= forward_sm90::kChainColumns<kPanels> && (shape.dv > 64) == (kPanels > 1),
             keeps = seed % 3 != 0 && (kKeyPanels > 2 || fits);  // the backward reads them in this layout
  if (keeps) chains.to = kept.chunks();
  chains.to.finalState = run.finalState();
  const bool saves = seed % 4 != 0;
  std::vector<float> saved(c.stateGradient.size(), NAN);
  chains.saved = saves ? saved.data() : nullptr;
  std::vector<float> middle(firstChunks > 0 ? saved.size() : 0, NAN), totals(middle.empty() ? 0 : saved.size(), NAN);
  chains.firstChunks = firstChunks;
  std::vector<uint16_t> images(middle.size() * 2 + 128 * 64 * 8, 0xffff);  // of padded channels
  chains.middle = middle.data();
  chains.images = images.data();
  chains.totals = totals.data();
  const int heads = static_cast<int>(forward_sm90::chainsOf<kPanels>(run.task)), ctas = firstChunks > 0 ? heads + 2 : 2;
  const auto runChains = [&]<bool kKeeps>() {
    using Kernel = typename KernelOf<kGated, kPanels, kKeyPanels, kKeeps>::Type;
    emulator::run(ctas, Kernel::kThreads, sizeof(typename Kernel::Memory), seed, [&] { Kernel::run(chains); });
  };
  keeps ? runChains.template operator()<true>() : runChains.template operator()<false>();
  if (firstChunks > 0) {
    using Tail = forward_sm90::HeadChainTailKernel<Bf16, kKeyPanels>;
    emulator::run(static_cast<int>(Tail::itemsOf(chains)), Tail::kThreads, sizeof(typename Tail::Memory), seed,
                  [&] { Tail::run(chains); });
  }
  run.check();
  if (keeps) kept.check(firstChunks > 0 ? firstChunks : -1);
  if (!saves) return;
  std::vector<float> initial = c.initial;
  initial.resize(saved.size());
  CHECK(saved == initial);
}
/// The chains start from zero states, and the contribution of the initial ones is added afterwards.
template <bool kGated, int kPanels = 1, int kKeyPanels = 2>
void checkFromZero(BackwardShape shape, uint64_t seed, int firstChunks = 0) {
  INFO(shape.name() << ", " << firstChunks << " first chunks, seed " << seed);
  shape.segmentTokens = std::max<int64_t>((shape.tokens + 63) / 64 * 64, 64);
  const BackwardCase c(shape, seed);
  ChunksRun run(c, kGated, seed);
  forward_sm90::HeadChainTask chains;
  REQUIRE(sm90::encodeMaps<Bf16>(chains, run.task));
  chains.initial = nullptr;
  using Kernel = typename KernelOf<kGated, kPanels, kKeyPanels>::Type;
  using Tail = forward_sm90::HeadChainTailKernel<Bf16, kKeyPanels, kPanels>;
  std::vector<float> middle(c.stateGradient.size(), NAN),
      totals(static_cast<size_t>(shape.batch * shape.heads) * static_cast<size_t>(chains.chunks()), NAN);
  chains.firstChunks = firstChunks;
  std::vector<uint16_t> images(middle.size() * 2 + 128 * 64 * 8, 0xffff);  // of padded channels
  chains.middle = middle.data();
  chains.images = images.data();
  chains.totals = totals.data();
  const int heads = static_cast<int>(forward_sm90::chainsOf<kPanels>(run.task)), ctas = firstChunks > 0 ? heads + 2 : 2;
  emulator::run(ctas, Kernel::kThreads, sizeof(typename Kernel::Memory), seed, [&] { Kernel::run(chains); });
  chains.incoming = c.initial.data();
  emulator::run(static_cast<int>(Tail::itemsOf(chains)), Tail::kThreads, sizeof(typename Tail::Memory), seed,
                [&] { Tail::run(chains); });
  run.checkOutputs();
}
template <bool kGated, int kPanels = 1, int kKeyPanels = 2>
void checkChains(const BackwardShape& shape) {
  const Seed seed;
  checkChains<kGated, kPanels, kKeyPanels>(shape, seed);
}
template <bool kGated>
void checkWideChains(const BackwardShape& shape, int firstChunks = 0) {
  const Seed seed;
  checkChains<kGated, 1, 4>(shape, seed, firstChunks);
}

BackwardShape shapeOfHeads(int64_t tokens, int heads, int qkHeads, double decay) {
  BackwardShape shape = shapeOf(Gate::Token, tokens, 128, 64, decay);
  shape.heads = heads;
  shape.qkHeads = qkHeads;
  return shape;
}

}  // namespace

TEST_CASE("outputs of heads in one chain each") {
  checkChains<true>(shapeOfHeads(460, 4, 1, 0.05));
  checkChains<false>(shapeOfHeads(130, 3, 3, 0.5));
  BackwardShape shape = shapeOfHeads(200, 4, 2, 0.05);
  shape.batch = 2;
  shape.states = false;
  shape.dk = 80;
  checkChains<true>(shape);
  for (const Gate gate : thinned({Gate::None, Gate::Head})) {
    shape.gate = gate;
    shape.states = true;
    checkChains<false>(shape);
  }
  shape.tokens = 1;
  checkChains<false>(shape);
}

TEST_CASE("outputs of heads in one chain with strong decays") {
  for (const double decay : thinned({30.0, 2.0, kZeros})) {
    checkChains<true>(shapeOfHeads(260, 2, 1, decay));
    checkChains<false>(shapeOfHeads(260, 2, 1, decay));
  }
}

TEST_CASE("outputs of heads in one chain with several panels of values") {
  BackwardShape shape = shapeOfHeads(300, 2, 1, 0.05);
  for (const int columns : thinned({192, 16, 80, 128})) {
    shape.dv = columns;
    checkChains<true>(shape);
  }
}

TEST_CASE("outputs of heads of 80 columns in one chain") {
  constexpr int kPanels = 2;
  BackwardShape shape = shapeOfHeads(330, 4, 1, 0.05);
  shape.dv = 80;
  checkChains<true, kPanels>(shape);
  shape.dv = 72;
  shape.dk = 80;
  checkChains<false, kPanels>(shape);
  shape.batch = 2;
  shape.tokens = 130;
  shape.dv = 160;
  checkChains<true, kPanels>(shape);
  shape.batch = 1;
  shape.dv = 80;
  for (const double decay : thinned({30.0, 2.0, kZeros})) {
    shape.decay = decay;
    checkChains<true, kPanels>(shape);
  }
}

TEST_CASE("outputs of heads with short keys in one chain each") {
  const Seed seed;
  BackwardShape shape = shapeOfHeads(460, 4, 1, 0.05);
  shape.dk = 64;
  checkChains<true, 1, 1>(shape);
  checkChains<true, 1, 1>(shape, seed, 4);
  checkFromZero<true, 1, 1>(shape, seed, 4);
  shape.dk = 48;
  shape.dv = 128;
  shape.batch = 2;
  for (const double decay : thinned({30.0, 0.5, 2.0, kZeros})) {
    shape.decay = decay;
    checkChains<false, 1, 1>(shape);
  }
  for (const Gate gate : thinned({Gate::None, Gate::Head})) {
    shape.gate = gate;
    checkChains<false, 1, 1>(shape, seed, 2);
  }
}

TEST_CASE("outputs of heads in two chains each") {
  const Seed seed;
  for (const double decay : thinned({0.05, 0.005, 0.5, 30.0, kZeros})) {
    checkChains<true, 1, 2>(shapeOfHeads(700, 3, 1, decay), seed, 4);
    checkChains<false, 1, 2>(shapeOfHeads(300, 4, 4, decay), seed, 3);
  }
  BackwardShape shape = shapeOfHeads(500, 2, 2, 0.02);
  shape.batch = 2;
  shape.dk = 80;
  shape.dv = 128;
  for (const Gate gate : thinned({Gate::None, Gate::Head})) {
    shape.gate = gate;
    checkChains<true, 1, 2>(shape, seed, 2);
  }
}

TEST_CASE("outputs of heads in chains from zero states") {
  const Seed seed;
  for (const double decay : thinned({0.05, 0.005, 30.0, kZeros})) {
    checkFromZero<true>(shapeOfHeads(460, 3, 1, decay), seed);
    checkFromZero<true>(shapeOfHeads(700, 3, 1, decay), seed, 5);
    BackwardShape shape = shapeOfHeads(330, 2, 1, decay);
    shape.dv = 80;
    checkFromZero<false, 2>(shape, seed);
    shape.dv = 128;
    shape.dk = 240;
    checkFromZero<true, 1, 4>(shape, seed, 3);
  }
  BackwardShape shape = shapeOfHeads(500, 2, 2, 0.02);
  shape.batch = 2;
  shape.dk = 80;
  for (const Gate gate : thinned({Gate::None, Gate::Head})) {
    shape.gate = gate;
    checkFromZero<false>(shape, seed, 2);
    checkFromZero<false>(shape, seed);
  }
}

TEST_CASE("outputs of heads in one chain with random shapes") {
  const Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < (kSanitized ? 2 : 4); ++i) {
    const bool wide = i % 2 == 1;
    const std::vector<int> keys = {16, 64, 80, 112, 128}, columns = {16, 64, 80, 128}, wideColumns = {16, 64, 72, 80};
    const BackwardShape shape = drawHeads({{1, 2, 3, 5, 8}, keys, wide ? wideColumns : columns, false}, random);
    if (wide) {
      shape.inputGates ? checkChains<true, 2, 2>(shape, seed) : checkChains<false, 2, 2>(shape, seed);
    } else if (shape.dk <= 64) {
      shape.inputGates ? checkChains<true, 1, 1>(shape, seed) : checkChains<false, 1, 1>(shape, seed);
    } else {
      shape.inputGates ? checkChains<true, 1, 2>(shape, seed) : checkChains<false, 1, 2>(shape, seed);
    }
  }
}

TEST_CASE("outputs of heads with wide keys in one chain each") {
  BackwardShape shape = shapeOfHeads(460, 4, 1, 0.05);
  shape.dk = 256;
  checkWideChains<true>(shape);
  shape.dv = 128;
  shape.heads = shape.qkHeads = 2;
  checkWideChains<false>(shape);
  for (const double decay : thinned({30.0, 0.5, 2.0, kZeros})) {
    shape = shapeOfHeads(330, 2, 1, decay);
    shape.dk = 256;
    checkWideChains<true>(shape);
  }
  shape = shapeOfHeads(130, 3, 3, 0.05);
  shape.batch = 2;
  shape.states = false;
  shape.dk = 144;
  checkWideChains<true>(shape);
  shape.tokens = 1;
  for (const Gate gate : thinned({Gate::None, Gate::Head})) {
    shape.gate = gate;
    shape.states = true;
    checkWideChains<false>(shape);
  }
}

TEST_CASE("outputs of heads with wide keys in two chains each") {
  for (const double decay : thinned({0.005, 0.5, kZeros})) {
    BackwardShape shape = shapeOfHeads(460, 3, 1, decay);
    shape.dk = 256;
    checkWideChains<true>(shape, 4);
  }
  BackwardShape shape = shapeOfHeads(390, 2, 2, 0.02);
  shape.batch = 2;
  shape.dk = 208;
  shape.dv = 128;
  for (const Gate gate : thinned({Gate::None, Gate::Head})) {
    shape.gate = gate;
    checkWideChains<false>(shape, 2);
  }
}

TEST_CASE("outputs of heads with wide keys in one chain with random shapes") {
  const Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2; ++i) {
    const BackwardShape shape = drawHeads({{1, 2, 3, 5}, {144, 176, 240, 256}, {64, 128, 192}, false}, random);
    shape.inputGates ? checkChains<true, 1, 4>(shape, seed) : checkChains<false, 1, 4>(shape, seed);
  }
}
