// Backward kernels of linear attention on an emulated CTA, compared with the reference.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/attn/linear/backward/exact.h"
#include "kernels/attn/linear/backward/gradients.h"
#include "kernels/attn/linear/backward/plan.h"
#include "support/gated_values.h"
#include "support/linear_backward_case.h"
#include "unit/seed.h"

namespace seqpar::attn::backward::test {

using seqpar::test::BackwardCase;
using seqpar::test::BackwardShape;
using seqpar::test::relativeError;

inline constexpr double kZeros = std::numeric_limits<double>::infinity();

inline std::vector<double> wide(const std::vector<float>& x) {
  return {x.begin(), x.end()};
}

/// The terms of a token gradient, one per block, as the kernels write them before they are added: fp32, or 16 bits with
/// scales.
struct Terms {
  std::vector<float> numbers, scales;
  std::vector<uint16_t> halves;
  Target target;
  int heads, blocks, width;

  /// `together`: heads with one term.
  Terms(const LinearProblem& problem, int blockCount, int columns, int together = 1)
      : numbers(static_cast<size_t>(problem.batch * problem.tokens * problem.heads / together * blockCount * columns),
                NAN),
        heads(problem.heads / together),
        blocks(blockCount),
        width(columns) {
    target.data = numbers.data();
    target.block = width;
    target.head = int64_t{blocks} * width;
    target.token = heads * target.head;
    target.batch = problem.tokens * target.token;
  }
  void useScales() {
    halves.assign(numbers.size() + 8, 0xffff);
    scales.assign(numbers.size() / static_cast<size_t>(width) * scalesOf(width), NAN);
    auto* data = halves.data();
    while (reinterpret_cast<uintptr_t>(data) % 16 != 0) ++data;
    target.data = data;
    target.scales = scales.data();
    target.wide = true;
  }
  void readScaled() {
    const auto* data = static_cast<const uint16_t*>(target.data);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const size_t row = i / static_cast<size_t>(width), column = i % static_cast<size_t>(width);
      const float scale = scales[row * scalesOf(width) + column / kScaled];
      numbers[i] = scale == kScaleOfBf16 ? ptx::lowOf<Bf16>(data[i]) : ptx::lowOf<Fp16>(data[i]) * scale;
    }
  }
  std::vector<double> sum(int group) const {
    std::vector<double> sums(numbers.size() / (static_cast<size_t>(group) * blocks), 0);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const size_t column = i % width, head = i / width / blocks;
      sums[head / group * width + column] += numbers[i];
    }
    return sums;
  }
};

/// The kernels for one type and one size of blocks.
template <class T, int kDimension, bool kChannel>
struct Kernels {
  static constexpr bool kExact = std::is_same_v<T, float>;
  static constexpr int kTogether = 1;         ///< heads of an item
  static constexpr int kWithOneTerm = 1;      ///< of these, heads with one term of dq and dk
  static constexpr bool kScales = false;      ///< terms of several heads or blocks have scales
  static constexpr bool kSumsValues = false;  ///< whether the kernel adds dv over key blocks
  using Number = std::conditional_t<kExact, Bf16, T>;
  static constexpr int kThreads = kExact ? kExactThreads : warpsOf(kDimension) * 32;

  static void maps(const Task& task, uint64_t seed) {
    using Memory = SweepMemory<Number, kDimension, kDimension, kChannel>;
    emulator::run(2, kThreads, kExact ? sizeof(ExactMemory) : kItemBytes + sizeof(Memory), seed, [&] {
      if constexpr (kExact) {
        ExactKernel::segmentMaps(task);
      } else {
        segmentMaps<T, kDimension, kDimension, kChannel, true>(task);
      }
    });
  }
  static void gradients(const Task& task, uint64_t seed) {
    using Memory = GradientsMemory<Number, kDimension, kDimension>;
    emulator::run(2, kThreads, kExact ? sizeof(ExactMemory) : kItemBytes + sizeof(Memory), seed, [&] {
      if constexpr (kExact) {
        ExactKernel::gradients(task);
      } else {
        GradientsKernel<T, kDimension, kDimension, kChannel>::run(task);
      }
    });
  }
};

/// The terms that the kernels write with scales.
template <class K>
std::vector<Terms*> scaledTerms(const Task& task, Terms& dq, Terms& dk, Terms& dv) {
  std::vector<Terms*> scaled;
  if (K::kWithOneTerm > 1 || (K::kScales && (task.group > 1 || task.valueBlocks > 1))) scaled = {&dq, &dk};
  if (K::kScales && dv.blocks > 1) scaled.push_back(&dv);
  return scaled;
}

/// In fp32 a decay below 2^-126 may be 0, so a state's gradient with up to 2^12 terms of size 1 is off by up to 2^-114.
/// In numbers of this size, that is an error of 2^-18, the least bound of the kernels.
inline constexpr double kLeastState = 0x1p-96;

/// Operands, states and results are rounded once each, independently. `least`: as of relativeError().
inline void checkError(const char* what, const std::vector<double>& found, const std::vector<double>& expected,
                       double most, double least = 0) {
  INFO(what);
  CHECK(relativeError(found, expected, least) <= most);
}

/// 16-bit gradients, which the kernels write to separate tensors, equal the rounded 32-bit gradients. For pairs of
/// heads, dq and dk are terms with scales.
template <class K>
void checkNarrow(Task task, uint64_t seed, const std::vector<float>& dq, const std::vector<float>& dk,
                 const std::vector<float>& dv) {
  const std::vector<float>* wide[] = {&dq, &dk, &dv};
  std::vector<uint16_t> narrow[3];
  Target* targets[] = {&task.dq, &task.dkOut, &task.dvOut};
  const auto type = std::is_same_v<typename K::Number, Bf16> ? seqparBfloat16 : seqparFloat16;
  constexpr int kFirst = K::kWithOneTerm > 1 ? 2 : 0;
  for (int i = kFirst; i < 3; ++i) {
    narrow[i].assign(wide[i]->size() + 8, 0xffff);
    auto* data = narrow[i].data();
    while (reinterpret_cast<uintptr_t>(data) % 16 != 0) ++data;
    targets[i]->data = data;
    targets[i]->type = type;
    targets[i]->wide = true;
  }
  K::gradients(task, seed);
  for (int i = kFirst; i < 3; ++i) {
    const auto* data = static_cast<const uint16_t*>(targets[i]->data);
    size_t wrong = 0;
    for (size_t n = 0; n < wide[i]->size(); ++n) {
      wrong += data[n] != (ptx::pack<typename K::Number>((*wide[i])[n], 0) & 0xffffu);
    }
    INFO("dq, dk, dv: " << i);
    CHECK(wrong == 0);
  }
}

/// `mostOfTokens`: error bound of the gradients of q, k, v and the gates; 0: bound for a few roundings of all values.
template <class T, class K, bool kChannel>
void checkKernelsOf(BackwardShape shape, uint64_t seed, double mostOfTokens = 0) {
  shape.type = K::kExact ? seqparFloat32 : std::is_same_v<T, Bf16> ? seqparBfloat16 : seqparFloat16;
  INFO(shape.name() << ", seed " << seed);
  const BackwardCase c(shape, seed);
  LinearProblem problem = c.problem(c.q.data(), c.k.data(), c.v.data(), c.gates.data());
  const seqpar::test::GatedValues gated(c.v, problem, seed);
  if (shape.inputGates) gated.giveTo(problem);
  const Segments segments = c.segmentsAt(c.spans.data());
  const double unit = K::kExact ? 0x1p-20 : std::is_same_v<T, Bf16> ? 0x1p-9 : 0x1p-12;
  const double most = 4 * unit, tokens = mostOfTokens > 0 ? mostOfTokens : most;
  // With channel decays, if no chunk forgets a channel, canceling terms have equal rounding errors, which cancel too.
  const bool cancels = kChannel && shape.starts.empty() && shape.decay < 1;
  const double mostOfGates = cancels ? tokens : most * (1 + c.gateRoundings(64));

  Task task = taskOf(problem, segments, {0, problem.heads}, c.dOutput(c.dOut.data()));
  task.together = K::kTogether;
  std::vector<float> states(c.after.size(), NAN), logs(c.afterLog.size(), NAN);
  SegmentStateGradients pass;
  pass.problem = problem;
  pass.segments = segments;
  pass.heads = {0, problem.heads};
  pass.dOut = c.dOutput(c.dOut.data());
  pass.maps = {states.data(), logs.data()};
  K::maps(mapsTaskOf(pass), seed);
  if (segments.count == 1 && c.continues()) {  // then its map is the rank's
    checkError("map", wide(states), wide(c.stateGradient), most, kLeastState);
    const auto decays = [](const std::vector<float>& from) {
      std::vector<double> result;
      for (const float log : from) result.push_back(std::exp(static_cast<double>(log)));
      return result;
    };
    checkError("decays", decays(logs), decays(c.logDecay), 1e-4, kLeastState);
  }

  auto before = c.before, beforeLog = c.beforeLog, after = c.after, afterLog = c.afterLog;
  task.before = {before.data(), beforeLog.data()};
  task.after = {after.data(), afterLog.data()};
  task.content = shape.content;
  task.initial = c.initial.empty() ? nullptr : c.initial.data();
  task.finalGradient = c.dFinal.empty() ? nullptr : c.dFinal.data();
  const int gateBlocks = kChannel || K::kSumsValues ? task.valueBlocks : task.keyBlocks * task.valueBlocks;
  Terms dq(problem, task.valueBlocks, problem.dk, K::kWithOneTerm),
      dk(problem, task.valueBlocks, problem.dk, K::kWithOneTerm),
      dv(problem, K::kSumsValues ? 1 : task.keyBlocks, problem.dv),
      gates(problem, gateBlocks, kChannel ? problem.dk : 1);
  std::vector<float> dInitial(c.stateGradient.size(), NAN);
  task.dGates = gates.target;
  task.dGates.wide = seed % 2 == 0;
  task.dInitial = dInitial.data();
  const auto scaled = scaledTerms<K>(task, dq, dk, dv);
  for (Terms* terms : scaled) terms->useScales();
  task.dq = dq.target;
  task.dkOut = dk.target;
  task.dvOut = dv.target;
  const bool addsInputs = seed % 4 < 2;  // over blocks of keys, in place
  Terms dInputs(problem, addsInputs ? 1 : task.keyBlocks, 1);
  if (shape.inputGates) task.dInputGates = dInputs.target;
  if (addsInputs) task.dInputGates.block = 0;
  const Workspace workspace = workspaceOf(problem, segments);
  std::vector<char> scratch(static_cast<size_t>(workspace.size));
  task.states = scratch.data() + std::max<int64_t>(workspace.states, 0);
  task.decays = scratch.data() + std::max<int64_t>(workspace.decays, 0);
  if (K::kSumsValues && task.keyBlocks > 1) task.valueSums = reinterpret_cast<float*>(scratch.data() + workspace.dv);
  K::gradients(task, seed);
  for (Terms* terms : scaled) terms->readScaled();
  if (!K::kExact && dv.blocks == 1 && task.valueBlocks == 1 && task.group == K::kWithOneTerm) {
    checkNarrow<K>(task, seed, dq.numbers, dk.numbers, dv.numbers);
  }

  checkError("dq", dq.sum(task.group / K::kWithOneTerm), c.expected.dq, tokens);
  checkError("dk", dk.sum(task.group / K::kWithOneTerm), c.expected.dk, tokens);
  std::vector<double> expectedDv = c.expected.dv;
  if (shape.inputGates) {
    const std::vector<double> values = seqpar::test::valuesOf(gated.values, shape.type);
    std::vector<double> expectedInputs(gated.gates.size(), 0);
    double squares = 1e-300, roundings = 0;  // each term has its own rounding error, also if most of a sum cancels
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t row = i / static_cast<size_t>(problem.dv);
      expectedInputs[row] += values[i] * expectedDv[i];
      roundings += std::pow(values[i] * expectedDv[i], 2);
      expectedDv[i] *= static_cast<double>(gated.gates[row]);
    }
    for (const double sum : expectedInputs) squares += sum * sum;
    checkError("input gates", dInputs.sum(1), expectedInputs, tokens * (1 + std::sqrt(roundings / squares)));
  }
  checkError("dv", dv.sum(1), expectedDv, tokens);
  if (c.continues()) checkError("dInitial", wide(dInitial), c.expected.dInitial, most, kLeastState);
  if (shape.gate == Gate::None) return;
  std::vector<double> sums = gates.sum(1);
  if (shape.gate == Gate::Head) {
    std::vector<double> heads(shape.heads, 0);
    for (size_t i = 0; i < sums.size(); ++i) heads[i % heads.size()] += sums[i];
    sums = heads;
  }
  checkError("gates", sums, c.expectedGates(), mostOfGates);
}

template <class T, class K, bool kChannel>
void checkKernels(const BackwardShape& shape, double mostOfTokens = 0) {
  const seqpar::test::Seed seed;
  checkKernelsOf<T, K, kChannel>(shape, seed, mostOfTokens);
}

/// Results of the gradients' kernel, their terms added.
struct Found {
  std::vector<double> dq, dk, dv, gates;
};

/// Computes the maps of each segment with the kernels, and the gradients, of a packed batch.
template <class K, bool kChannel>
Found gradientsOf(const BackwardCase& c, uint64_t seed) {
  const LinearProblem problem = c.problem(c.q.data(), c.k.data(), c.v.data(), c.gates.data());
  const Segments segments = c.segmentsAt(c.spans.data());
  Task task = taskOf(problem, segments, {0, problem.heads}, c.dOutput(c.dOut.data()));
  task.together = K::kTogether;
  auto before = c.before, beforeLog = c.beforeLog, after = c.after, afterLog = c.afterLog;
  task.before = {before.data(), beforeLog.data()};
  task.after = {after.data(), afterLog.data()};
  task.content = c.shape.content;
  task.initial = c.initial.empty() ? nullptr : c.initial.data();
  task.finalGradient = c.dFinal.empty() ? nullptr : c.dFinal.data();
  const int gateBlocks = kChannel || K::kSumsValues ? task.valueBlocks : task.keyBlocks * task.valueBlocks;
  Terms dq(problem, task.valueBlocks, problem.dk, K::kWithOneTerm),
      dk(problem, task.valueBlocks, problem.dk, K::kWithOneTerm),
      dv(problem, K::kSumsValues ? 1 : task.keyBlocks, problem.dv),
      gates(problem, gateBlocks, kChannel ? problem.dk : 1);
  const auto scaled = scaledTerms<K>(task, dq, dk, dv);
  for (Terms* terms : scaled) terms->useScales();
  task.dq = dq.target;
  task.dkOut = dk.target;
  task.dvOut = dv.target;
  task.dGates = gates.target;
  const Workspace workspace = workspaceOf(problem, segments);
  std::vector<char> scratch(static_cast<size_t>(workspace.size));
  task.states = scratch.data() + std::max<int64_t>(workspace.states, 0);
  task.decays = scratch.data() + std::max<int64_t>(workspace.decays, 0);
  if (K::kSumsValues && task.keyBlocks > 1) task.valueSums = reinterpret_cast<float*>(scratch.data() + workspace.dv);
  K::gradients(task, seed);
  for (Terms* terms : scaled) terms->readScaled();
  const int sharing = task.group / K::kWithOneTerm;
  return {dq.sum(sharing), dk.sum(sharing), dv.sum(1), gates.sum(1)};
}

/// Each number's error is bounded relative to the magnitudes of its own terms, however small they are.
template <class K>
void checkNumbers(const BackwardShape& shape) {
  const seqpar::test::Seed seed;
  INFO(shape.name() << ", seed " << seed);
  const BackwardCase c(shape, seed);
  const Found found = gradientsOf<K, true>(c, seed);
  const auto terms = c.magnitudes();
  const auto wrong = [](const std::vector<double>& is, const std::vector<double>& expected,
                        const std::vector<double>& magnitudes) {
    size_t count = 0;
    for (size_t i = 0; i < is.size(); ++i) count += !(std::abs(is[i] - expected[i]) <= 0x1p-6 * magnitudes[i]);
    return count;
  };
  CHECK(wrong(found.dq, c.expected.dq, terms.dq) == 0);
  CHECK(wrong(found.dk, c.expected.dk, terms.dk) == 0);
  CHECK(wrong(found.dv, c.expected.dv, terms.dv) == 0);
}

/// The gradients of other packed sequences have the same bits if all inputs and maps of one sequence are NaN or zero.
template <class T, class K, bool kChannel>
void checkSequencesApart(BackwardShape shape, uint64_t seed) {
  shape.type = K::kExact ? seqparFloat32 : std::is_same_v<T, Bf16> ? seqparBfloat16 : seqparFloat16;
  const BackwardCase c(shape, seed);
  const Found expected = gradientsOf<K, kChannel>(c, seed);
  std::vector<int64_t> bounds{0};
  for (int64_t t = 1; t < shape.tokens; ++t) {
    if (c.inputs.begins[static_cast<size_t>(t)] != 0) bounds.push_back(t);
  }
  bounds.push_back(shape.tokens);
  std::mt19937_64 random(seed);
  for (const double value : {std::nan(""), kZeros}) {
    const size_t sequence = random() % (bounds.size() - 1);
    const int64_t from = bounds[sequence], to = bounds[sequence + 1];
    INFO(shape.name() << ", seed " << seed << ": " << value << " from token " << from << " to " << to);
    BackwardCase other = c;
    for (const auto place : {BackwardCase::Place::Queries, BackwardCase::Place::Keys, BackwardCase::Place::Values,
                             BackwardCase::Place::Gates, BackwardCase::Place::Outputs, BackwardCase::Place::States}) {
      other.poison(place, value, from, to);
    }
    const Found found = gradientsOf<K, kChannel>(other, seed);
    const auto different = [&](const std::vector<double>& a, const std::vector<double>& b) {
      size_t wrong = 0;
      const size_t width = a.size() / static_cast<size_t>(shape.tokens);
      for (size_t i = 0; i < a.size(); ++i) {
        const auto token = static_cast<int64_t>(i / width);
        if (token < from || token >= to) wrong += a[i] != b[i];
      }
      return wrong;
    };
    CHECK(different(expected.dq, found.dq) == 0);
    CHECK(different(expected.dk, found.dk) == 0);
    CHECK(different(expected.dv, found.dv) == 0);
    if (shape.gate != Gate::None) CHECK(different(expected.gates, found.gates) == 0);
  }
}

template <class T, class K, bool kChannel>
void checkSequencesApart(const BackwardShape& shape) {
  const seqpar::test::Seed seed;
  checkSequencesApart<T, K, kChannel>(shape, seed);
}

template <class T, int kDimension, bool kChannel>
void check(const BackwardShape& shape, double mostOfTokens = 0) {
  checkKernels<T, Kernels<T, kDimension, kChannel>, kChannel>(shape, mostOfTokens);
}

inline BackwardShape shapeOf(Gate gate, int64_t tokens, int dk, int dv, double decay) {
  BackwardShape shape;
  shape.gate = gate;
  shape.tokens = tokens;
  shape.dk = dk;
  shape.dv = dv;
  shape.decay = decay;
  shape.segmentTokens = 64;
  return shape;
}

}  // namespace seqpar::attn::backward::test
