// The sm_90 kernel that computes the states of all chunks, on an emulated CTA, compared with the recurrence in fp64.
#include "common/covering.h"
#include "kernels/attn/linear/backward/chunk_states_sm90.h"
#include "linear_chunk_states_check.h"
#include "random_heads.h"

using namespace seqpar;
using namespace seqpar::attn;
using namespace seqpar::attn::backward;
using namespace seqpar::attn::backward::test;
using namespace seqpar::test;

namespace {

/// A token's gates one number after those of the token before, which no load of two heads is aligned to.
struct GatesApart {
  std::vector<float> numbers;

  /// `from`: [batch][tokens][heads] in fp32.
  void take(Input& from, const LinearProblem& problem) {
    const auto* at = static_cast<const float*>(from.data);
    const int64_t stride = problem.heads + 1 - problem.heads % 2;
    numbers.assign(static_cast<size_t>(problem.batch * problem.tokens * stride), NAN);
    for (int64_t row = 0; row < problem.batch * problem.tokens; ++row) {
      std::copy_n(at + row * problem.heads, problem.heads, numbers.begin() + row * stride);
    }
    from = {numbers.data(), problem.tokens * stride, stride, 1};
  }
};

/// A case's task, and the kernel's results. kSingle: items of one head of a pair, or of half of a head's columns.
template <class T, int kHeads, bool kGated, bool kSingle = false>
struct StatesRun {
  GatedValues gated;
  GatesApart decaysApart, inputsApart;
  sm90::ChunkStatesTask task;
  std::vector<uint16_t> states, gradients;
  std::vector<float> dInitial, finalState;

  /// `apart`: heads' gates are not aligned to pairs.
  StatesRun(const BackwardCase& c, int every, uint64_t seed, bool apart = false)
      : gated(c.v, c.problem(c.q.data(), c.k.data(), c.v.data(), c.gates.data()), seed) {
    LinearProblem problem = c.problem(c.q.data(), c.k.data(), c.v.data(), c.gates.data());
    if (kGated) gated.giveTo(problem);
    if (apart) {
      if (problem.gate == Gate::Token) decaysApart.take(problem.gates, problem);
      if (kGated && !gated.half) inputsApart.take(problem.inputGates, problem);
    }
    Task plain = taskOf(problem, c.segmentsAt(c.spans.data()), {0, problem.heads}, c.dOutput(c.dOut.data()));
    plain.together = kHeads;
    before = {c.before, c.beforeLog};
    after = {c.after, c.afterLog};
    plain.before = {before.states.data(), before.logs.data()};
    plain.after = {after.states.data(), after.logs.data()};
    plain.content = c.shape.content;
    plain.initial = c.initial.empty() ? nullptr : c.initial.data();
    plain.finalGradient = c.dFinal.empty() ? nullptr : c.dFinal.data();
    dInitial.assign(c.stateGradient.size(), NAN);
    finalState.assign(c.stateGradient.size(), NAN);
    plain.dInitial = dInitial.data();
    REQUIRE(sm90::encodeMaps<T>(task, plain));
    task.to = chunkStatesOf(plain, every);
    task.to.finalState = finalState.data();
    task.copierFences = seed % 5 < 3;
    const auto elements = static_cast<size_t>(task.to.bytes(plain) / 2);
    states.assign(elements, 0xffff);
    gradients.assign(elements, 0xffff);
    task.to.states = states.data();
    task.to.gradients = gradients.data();
    if (kSingle) task.together = 1;
    const auto run = [&]<class Shape>() {
      using Kernel = sm90::ChunkStatesKernel<T, kSingle ? 1 : kHeads, kGated, Shape, kSingle>;
      emulator::run(2, Kernel::kThreads, sizeof(typename Kernel::Memory), seed, [&] { Kernel::run(task); });
    };
    if constexpr (kHeads == kPair) {
      withImageShape(task, run);
    } else {
      run.template operator()<ImageShape<64, kBlock>>();
    }
  }

  /// The slot of the first group of segment `i`.
  int64_t numberOf(int i) const { return task.to.numberOf(Item<T>(task, int64_t{i} * task.keyBlocks)); }
  std::vector<double> stateAt(const std::vector<uint16_t>& images, int sequence, int head, int64_t number) const {
    return stateIn<T>(images.data(), task, task.to, kHeads == kPair && task.dv > 64, {sequence, head, number});
  }

 private:
  struct MapsCopy {
    std::vector<float> states, logs;
  };
  MapsCopy before, after;
};

template <class T, int kHeads, bool kGated = false, bool kSingle = false>
void checkStates(BackwardShape shape, int every, uint64_t seed, bool apart) {
  shape.type = ptx::kIsBf16<T> ? seqparBfloat16 : seqparFloat16;
  INFO(shape.name() << ", every " << every << ", seed " << seed);
  const BackwardCase c(shape, seed);
  const StatesRun<T, kHeads, kGated, kSingle> run(c, every, seed, apart);
  const double most = ptx::kIsBf16<T> ? 0x1p-8 : 0x1p-11;
  const int64_t group = int64_t{kChunk} * every;
  for (const bool reverse : {false, true}) {
    std::vector<double> found, expected, last, expectedLast;
    for (int sequence = 0; sequence < shape.batch; ++sequence) {
      for (int head = 0; head < shape.heads; ++head) {
        auto states = recurrence(c, sequence, head, every, reverse);
        expectedLast.insert(expectedLast.end(), states.back().begin(), states.back().end());
        states.pop_back();
        for (const auto& state : states) expected.insert(expected.end(), state.begin(), state.end());
        const std::vector<Span> spans = spansOf(c);
        for (size_t i = 0; i < spans.size(); ++i) {
          const int64_t start = run.numberOf(static_cast<int>(i));
          for (int64_t n = 0; n * group < spans[i].end - spans[i].begin; ++n) {
            const auto state = run.stateAt(reverse ? run.gradients : run.states, sequence, head, start + n);
            found.insert(found.end(), state.begin(), state.end());
          }
        }
      }
    }
    INFO("reverse: " << reverse);
    REQUIRE(found.size() == expected.size());
    checkError("states", found, expected, most, kLeastState);
    if (!reverse || c.continues()) {
      checkError("last state", wide(reverse ? run.dInitial : run.finalState), expectedLast, most, kLeastState);
    }
  }
}

template <class T, int kHeads, bool kGated = false, bool kSingle = false>
void checkStates(const BackwardShape& shape, int every, bool apart = false) {
  const Seed seed;
  checkStates<T, kHeads, kGated, kSingle>(shape, every, seed, apart);
}

BackwardShape pairShape(int64_t tokens, double decay, int dv = 64) {
  BackwardShape shape = shapeOf(Gate::Token, tokens, 128, dv, decay);
  shape.heads = 2;
  shape.segmentTokens = 256;
  return shape;
}

}  // namespace

TEST_CASE("states of chunks of pairs of heads") {
  for (const int every : thinned({3, 1, 2})) {
    BackwardShape shape = pairShape(460, 0.05);
    shape.heads = 4;
    shape.qkHeads = every == 2 ? 2 : 1;
    shape.content = every == 3 ? Maps::PerSegment : Maps::Prefix;
    checkStates<Bf16, kPair>(shape, every);
    checkStates<Bf16, kPair, true>(shape, every);
  }
  BackwardShape shape = pairShape(130, 0.5);
  shape.batch = 2;
  shape.states = false;
  checkStates<Fp16, kPair>(shape, 2);
  for (const int keys : thinned({192, 64, 48})) {
    shape.dk = keys;
    checkStates<Bf16, kPair, true>(shape, 1);
  }
  shape.starts = {-3, 5, 64, 65};
  shape.batch = 1;
  shape.states = true;
  checkStates<Bf16, kPair, true>(shape, 1);
}

TEST_CASE("states of chunks of pairs of heads of 80 columns") {
  for (const int every : thinned({3, 1})) {
    BackwardShape shape = pairShape(460, 0.05, kWideColumns);
    shape.heads = 4;
    shape.qkHeads = every == 3 ? 2 : 1;
    shape.content = every == 3 ? Maps::PerSegment : Maps::Prefix;
    checkStates<Bf16, kPair>(shape, every);
    checkStates<Bf16, kPair, true>(shape, every);
  }
  checkStates<Fp16, kPair>(pairShape(300, kZeros, kWideColumns), 1);
  BackwardShape shape = pairShape(400, 0.05, kWideColumns);
  shape.starts = {-3, 5, 64, 65, 130, 200};
  checkStates<Bf16, kPair, true>(shape, 1);
}

TEST_CASE("states of chunks of pairs of heads whose gates are not aligned") {
  BackwardShape shape = pairShape(330, 0.05);
  shape.heads = 4;
  shape.segmentTokens = 512;
  constexpr bool kApart = true;
  checkStates<Bf16, kPair>(shape, 1, kApart);
  checkStates<Bf16, kPair, true>(shape, 1, kApart);
}

TEST_CASE("states of chunks without decays, with one decay a head, and with decays of 0") {
  for (const Gate gate : {Gate::None, Gate::Head}) {
    BackwardShape shape = pairShape(200, 0.05);
    shape.gate = gate;
    checkStates<Bf16, kPair>(shape, 2);
  }
  checkStates<Bf16, kPair>(pairShape(300, kZeros), 1);
  checkStates<Bf16, kPair, true>(pairShape(300, 20), 2);
  BackwardShape shape = pairShape(70, 300);  // decays below those of fp32
  shape.heads = 1;
  shape.dk = 80;
  checkStates<Bf16, 1>(shape, 1, 1);
}

TEST_CASE("states of chunks of packed sequences, and without tokens") {
  for (const int every : {1, 2}) {
    BackwardShape shape = pairShape(400, 0.05);
    shape.starts = {-3, 5, 64, 65, 130, 200};
    checkStates<Bf16, kPair, true>(shape, every);
    shape.starts = {0, 300};
    shape.segmentTokens = 128;
    shape.content = Maps::PerSegment;
    checkStates<Bf16, kPair>(shape, every);
  }
  checkStates<Bf16, kPair>(pairShape(0, 0.05), 1);
}

TEST_CASE("states of chunks of single heads") {
  for (const int columns : thinned({208, 128, 80})) {
    BackwardShape shape = pairShape(200, 0.05);
    shape.heads = 3;
    shape.dv = columns;
    shape.dk = columns == 208 ? 144 : 96;
    shape.segmentTokens = 128;
    checkStates<Bf16, 1, true>(shape, 2);
    checkStates<Fp16, 1>(shape, 1);
  }
}

TEST_CASE("states of chunks with a head of a pair per item") {
  for (const int columns : {64, kWideColumns}) {
    for (const int keys : thinned({128, 112, columns == 64 ? 48 : 80})) {
      BackwardShape shape = pairShape(460, 0.05, columns);
      shape.heads = 4;
      shape.qkHeads = keys == 112 ? 2 : 1;
      shape.dk = keys;
      checkStates<Bf16, kPair, false, true>(shape, 1);
      checkStates<Bf16, kPair, true, true>(shape, 1);
    }
    checkStates<Fp16, kPair, false, true>(pairShape(300, kZeros, columns), 1);
    BackwardShape shape = pairShape(400, 0.05, columns);
    shape.starts = {-3, 5, 64, 65, 130, 200};
    checkStates<Bf16, kPair, true, true>(shape, 2);
  }
}

TEST_CASE("states of chunks with half of a head's columns per item") {
  for (const int keys : thinned({240, 128})) {
    BackwardShape shape = pairShape(330, 0.05, keys == 128 ? 256 : 128);
    shape.heads = 3;
    shape.dk = keys;
    checkStates<Bf16, 1, false, true>(shape, 1);
    checkStates<Bf16, 1, true, true>(shape, 1);
  }
}

TEST_CASE("states of chunks do not depend on values of other sequences or before a decay of 0") {
  BackwardShape shape = pairShape(190, 0.05);
  shape.starts = {0, 5, 64, 65, 130};
  const Seed seed;
  const BackwardCase c(shape, seed);
  BackwardCase other = c;
  for (const auto place : {BackwardCase::Place::Queries, BackwardCase::Place::Keys, BackwardCase::Place::Values,
                           BackwardCase::Place::Gates, BackwardCase::Place::Outputs, BackwardCase::Place::States}) {
    other.poison(place, std::nan(""), 65, 130);
  }
  using Run = StatesRun<Bf16, kPair, false>;
  const Run expected(c, 1, seed), found(other, 1, seed);
  for (size_t i = 0; i < c.spans.size(); ++i) {
    const Span& span = c.spans[i];
    if (span.begin == 65) continue;
    for (int64_t n = 0; n * kChunk < span.end - span.begin; ++n) {
      const int64_t number = expected.numberOf(static_cast<int>(i)) + n;
      for (int head = 0; head < shape.heads; ++head) {
        CHECK(found.stateAt(found.states, 0, head, number) == expected.stateAt(expected.states, 0, head, number));
        CHECK(found.stateAt(found.gradients, 0, head, number) == expected.stateAt(expected.gradients, 0, head, number));
      }
    }
  }
}

TEST_CASE("states of chunks with random shapes") {
  const Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < (kSanitized ? 3 : 6); ++i) {
    const int every = 1 + static_cast<int>(random() % 2);
    const bool apart = random() % 2 == 0;
    if (i % 3 == 2) {
      const BackwardShape shape = drawHeads({{2, 4, 8}, {48, 64, 80, 112, 128}, {kWideColumns}}, random);
      shape.inputGates ? checkStates<Bf16, kPair, true>(shape, every, seed, apart)
                       : checkStates<Bf16, kPair>(shape, every, seed, apart);
    } else if (i % 3 == 0) {
      const BackwardShape shape = drawHeads({{2, 4, 8}, {48, 64, 80, 112, 128, 144, 256}, {64}}, random);
      shape.inputGates ? checkStates<Bf16, kPair, true>(shape, every, seed, apart)
                       : checkStates<Bf16, kPair>(shape, every, seed, apart);
    } else {
      const BackwardShape shape = drawHeads({{1, 3, 5, 7}, {80, 112, 128, 144, 256}, {16, 64, 80, 128}}, random);
      shape.inputGates ? checkStates<Bf16, 1, true>(shape, every, seed, apart)
                       : checkStates<Bf16, 1>(shape, every, seed, apart);
    }
  }
}
