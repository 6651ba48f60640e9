// The sm_90 backward kernels for groups of heads that share queries and keys, on an emulated CTA.
#include "common/covering.h"
#include "kernels/attn/linear/backward/chunk_states_sm90.h"
#include "kernels/attn/linear/backward/group_sm90.h"
#include "linear_backward_check.h"
#include "random_heads.h"
#include "rounded_terms.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

/// A gradient of gates, with a part for each block of keys, or one; later their sum is the first part of the target.
struct PartsOfGates {
  std::vector<float> numbers;
  Target to;
  int64_t rows;
  int heads, blocks;

  PartsOfGates(Target& target, const Task& task, bool forBlocks)
      : to(target), rows(task.batch * task.tokens), heads(task.heads), blocks(forBlocks ? task.keyBlocks : 1) {
    if (target.data == nullptr) return;
    numbers.assign(static_cast<size_t>(rows * heads * blocks), NAN);
    target.data = numbers.data();
    target.block = forBlocks ? 1 : 0;
    target.head = blocks;
    target.token = int64_t{heads} * blocks;
    target.batch = task.tokens * target.token;
  }
  void add() const {
    if (to.data == nullptr) return;
    const int64_t ofHead = to.head;
    std::fill_n(static_cast<float*>(to.data), rows * heads * ofHead, 0.f);
    for (size_t i = 0; i < numbers.size(); ++i) {
      static_cast<float*>(to.data)[static_cast<int64_t>(i) / blocks * ofHead] += numbers[i];
    }
  }
};

template <class T>
struct GroupKernels {
  static constexpr bool kExact = false;
  static constexpr int kTogether = kPair, kWithOneTerm = 1;
  static constexpr bool kScales = false, kSumsValues = true;
  using Number = T;

  static void maps(const Task& task, uint64_t seed) { Kernels<T, kBlock, false>::maps(task, seed); }
  template <class Shape, int kHeads, bool kGated, bool kSingle = false>
  static void statesOf(const sm90::ChunkStatesTask& task, uint64_t seed) {
    using Kernel = sm90::ChunkStatesKernel<T, kHeads, kGated, typename Shape::OfBlock, kSingle>;
    emulator::run(2, Kernel::kThreads, sizeof(typename Kernel::Memory), seed, [&] { Kernel::run(task); });
  }
  template <class Shape, bool kGated>
  static void states(sm90::ChunkStatesTask task, uint64_t seed) {
    if (seed % 4 == 3) {
      task.together = 1;
      return statesOf<Shape, 1, kGated, true>(task, seed);
    }
    if constexpr (Shape::kKeyBlocks > 1) {
      if (task.together == 1) return statesOf<Shape, 1, kGated>(task, seed);
    }
    statesOf<Shape, kPair, kGated>(task, seed);
  }
  static void gradients(const Task& task, uint64_t seed) {
    withImageShape(task, [&]<class Shape>() { gradientsOf<Shape>(task, seed); });
  }
  template <class Shape>
  static void gradientsOf(Task task, uint64_t seed) {
    const bool wide = seed % 3 != 0;
    if (task.dv > kWideColumns) task.together = 1;
    const PartsOfGates gates(task.dGates, task, true), inputs(task.dInputGates, task, task.together == 1);
    const Rounded<T> dq(task.dq, task, task.heads / task.group, task.dk, wide),
        dk(task.dkOut, task, task.heads / task.group, task.dk, wide), dv(task.dvOut, task, task.heads, task.dv, wide);
    sm90::ChunkStatesTask chain;
    REQUIRE(sm90::encodeMaps<T>(chain, task));
    chain.to = chunkStatesOf(task, 1);
    chain.copierFences = seed % 5 < 3;
    const auto elements = static_cast<size_t>(chain.to.bytes(task) / 2);
    std::vector<uint16_t> before(elements + 8, 0xffff), after(elements + 8, 0xffff);
    chain.to.states = aligned(before);
    chain.to.gradients = aligned(after);
    const auto run = [&](const sm90::ChunkStatesTask& launch) {
      return task.inputGates.data != nullptr ? states<Shape, true>(launch, seed) : states<Shape, false>(launch, seed);
    };
    if (seed % 2 == 0) {
      run(chain);
    } else {  // GradientsPart::States and AfterStates, or the two others
      sm90::ChunkStatesTask direction = chain;
      direction.to.directions = 1;
      const int earlier = static_cast<int>(seed / 4 % 2);
      for (const int first : {earlier, 1 - earlier}) {
        direction.to.firstDirection = first;
        run(direction);
      }
    }
    sm90::GroupTask group;
    REQUIRE(sm90::encodeGroup<T>(group, task, chain.to));
    using Kernel = sm90::GroupKernel<T, Shape>;
    emulator::run(2, Kernel::kThreads, sizeof(typename Kernel::Memory), seed, [&] { Kernel::run(group); });
    dq.expand(task.heads);
    dk.expand(task.heads);
    dv.expand(task.heads);
    gates.add();
    inputs.add();
  }
  static void* aligned(std::vector<uint16_t>& numbers) {
    auto* data = numbers.data();
    while (reinterpret_cast<uintptr_t>(data) % 16 != 0) ++data;
    return data;
  }
};

void checkGroups(const BackwardShape& shape) {
  checkKernels<Bf16, GroupKernels<Bf16>, false>(shape);
}
void checkGroupsApart(const BackwardShape& shape) {
  if (!kSanitized) checkSequencesApart<Bf16, GroupKernels<Bf16>, false>(shape);
}
BackwardShape groupShape(int64_t tokens, double decay, int heads = 4, int qkHeads = 1, int dv = 64, int dk = 128) {
  BackwardShape shape = shapeOf(Gate::Token, tokens, dk, dv, decay);
  shape.heads = heads;
  shape.qkHeads = qkHeads;
  shape.segmentTokens = 256;
  return shape;
}
/// Two batch entries, maps per segment, input gates.
BackwardShape batchShape(int dv = 64, int dk = 128) {
  BackwardShape shape = groupShape(130, 0.05, 8, 2, dv, dk);
  shape.batch = 2;
  shape.content = Maps::PerSegment;
  shape.inputGates = true;
  return shape;
}

const std::vector<int> kShortKeys{16, 64, 80, 96, 112, 128};
void checkRandomGroups(const std::vector<int>& groups, const std::vector<int>& keys, int columns, int shapes = 2) {
  const Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < (kSanitized ? 1 : shapes); ++i) {
    const BackwardShape shape = drawHeads({groups, keys, {columns}}, random);
    checkKernelsOf<Bf16, GroupKernels<Bf16>, false>(shape, seed);
    if (!shape.starts.empty() && !kSanitized) checkSequencesApart<Bf16, GroupKernels<Bf16>, false>(shape, seed);
  }
}

}  // namespace

TEST_CASE("backward kernels of groups of heads") {
  checkGroups(groupShape(330, 0.05));
  BackwardShape shape = batchShape();
  checkGroups(shape);
  shape.heads = 2;
  shape.qkHeads = 1;
  checkGroups(shape);
}

TEST_CASE("backward kernels of groups of heads with fewer columns, other decays and strong ones") {
  BackwardShape shape = groupShape(200, 0.05);
  for (const int columns : thinned({80, 16, 64})) {
    shape.dk = columns;
    checkGroups(shape);
  }
  for (const Gate gate : thinned({Gate::None, Gate::Head})) {
    shape.gate = gate;
    checkGroups(shape);
  }
  shape = groupShape(300, 3);
  shape.inputGates = true;
  for (const double decay : thinned({kZeros, 3.0})) {
    shape.decay = decay;
    checkGroups(shape);
  }
  checkKernelsOf<Bf16, GroupKernels<Bf16>, false>(groupShape(2, 300, 2), 1);  // decays below those of fp32
}

TEST_CASE("backward kernels of groups of heads of 80 columns") {
  checkGroups(groupShape(330, 0.05, 4, 1, kWideColumns));
  BackwardShape shape = batchShape(kWideColumns);
  checkGroups(shape);
  shape.heads = 2;
  shape.qkHeads = 1;
  shape.dk = 64;
  checkGroups(shape);
  shape = groupShape(200, 3, 4, 1, kWideColumns);
  shape.inputGates = true;
  for (const double decay : thinned({kZeros, 3.0})) {
    shape.decay = decay;
    checkGroups(shape);
  }
  shape = groupShape(190, 0.05, 4, 1, kWideColumns);
  shape.starts = {0, 5, 64, 65, 130};
  checkGroups(shape);
  checkGroupsApart(shape);
}

TEST_CASE("backward kernels of groups of heads with keys of 256") {
  checkGroups(groupShape(150, 0.05, 4, 1, 64, 256));
  BackwardShape shape = batchShape(128, 256);
  checkGroups(shape);
  shape = batchShape(64, 256);
  shape.heads = 2;
  shape.qkHeads = 1;
  for (const int keys : thinned({192, 136})) {
    shape.dk = keys;
    checkGroups(shape);
  }
  shape = groupShape(130, 0.05, 2, 2, 256, 256);  // four parts of each head
  shape.inputGates = true;
  checkGroups(shape);
}

TEST_CASE("backward kernels of groups of heads with keys of 256, other decays and strong ones") {
  for (const int columns : {64, 128}) {
    BackwardShape shape = groupShape(130, 0.05, 2, 1, columns, 256);
    for (const Gate gate : thinned({Gate::None, Gate::Head})) {
      shape.gate = gate;
      checkGroups(shape);
    }
    shape = groupShape(200, 3, 2, 1, columns, 256);
    shape.inputGates = true;
    checkGroups(shape);
    shape.decay = kZeros;
    checkGroups(shape);
    shape = groupShape(190, 0.05, 2, 1, columns, 256);
    shape.starts = {0, 5, 64, 65, 130};
    checkGroups(shape);
    checkGroupsApart(shape);
  }
}

TEST_CASE("backward kernels of groups of heads whose input gates have gradients of terms that cancel") {
  BackwardShape shape = groupShape(1, 0.05, 2);
  shape.inputGates = true;
  checkKernelsOf<Bf16, GroupKernels<Bf16>, false>(shape, 972);  // by a factor of 500
}

TEST_CASE("backward kernels of groups of heads with packed sequences") {
  BackwardShape shape = groupShape(400, 0.05);
  shape.starts = {-3, 5, 64, 65, 130, 200};
  shape.inputGates = true;
  checkGroups(shape);
  shape.inputGates = false;
  shape.starts = {0, 300};
  checkGroups(shape);
  shape = groupShape(190, 0.05);
  shape.starts = {0, 5, 64, 65, 130};
  checkGroupsApart(shape);
  shape.starts = {-3};
  checkGroupsApart(shape);
  checkGroups(groupShape(0, 0.05));
}

TEST_CASE("backward kernels of groups of heads with random shapes") {
  checkRandomGroups({2, 4, 8, 16, 48}, kShortKeys, 64);
}

TEST_CASE("backward kernels of groups of heads of 80 columns with random shapes") {
  checkRandomGroups({2, 4, 8, 16, 48}, kShortKeys, kWideColumns);
}

TEST_CASE("backward kernels of groups of heads of more than 128 keys with random shapes") {
  for (const int columns : {64, kBlock}) checkRandomGroups({2, 4, 6, 8}, {136, 192, 256}, columns, 1);
}
