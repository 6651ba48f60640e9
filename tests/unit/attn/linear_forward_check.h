// Forward kernels of linear attention on an emulated CTA, compared with a recurrence in fp64.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "kernels/arch/ptx.h"
#include "kernels/attn/linear/args.h"
#include "support/gated_values.h"
#include "support/linear_forward_case.h"
#include "unit/seed.h"

namespace seqpar::attn::test {

using seqpar::test::Decays;
using seqpar::test::Expected;
using seqpar::test::ForwardCase;
using seqpar::test::ForwardSpec;
using Place = ForwardCase::Place;

inline const char* nameOf(Maps content) {
  return content == Maps::Prefix ? ", prefixes" : ", per segment";
}

/// Converts maps of single segments to the incoming states that Outputs requires with Maps::Prefix. GPU:
/// fold_kernel.h.
inline void foldMaps(const LinearProblem& problem, const Segments& segments, const StateMaps& maps) {
  const int64_t size = int64_t{problem.dk} * problem.dv, width = transitionWidth(problem);
  for (int64_t head = 0; head < problem.batch * problem.heads; ++head) {
    std::vector<float> sum(static_cast<size_t>(size), 0);
    for (int64_t map = head * segments.count; map < (head + 1) * segments.count; ++map) {
      for (int64_t i = 0; i < size; ++i) {
        const float factor = std::exp(maps.transitions[map * width + (width > 1 ? i / problem.dv : 0)]);
        float &state = maps.states[map * size + i], &before = sum[static_cast<size_t>(i)];
        const float after = (factor == 0 ? 0 : factor * before) + state;
        state = before;
        before = after;
      }
    }
  }
}

inline void checkWithin(const char* what, const Expected& expected, const std::vector<double>& found) {
  int64_t worst = -1;
  const double ratio = excess(expected, found, &worst);
  INFO(what << " number " << worst);
  CHECK(ratio <= 1);
}

inline ForwardSpec specOf(Gate gate, int64_t tokens, int dk, int dv, Decays decays) {
  ForwardSpec spec;
  spec.gate = gate;
  spec.tokens = tokens;
  spec.heads = spec.qkHeads = 1;
  spec.dk = dk;
  spec.dv = dv;
  spec.decays = decays;
  spec.segmentTokens = 64;
  return spec;
}

/// Results of both passes.
struct ForwardResults {
  std::vector<uint16_t> out;  ///< [batch][head][token][dv]
  std::vector<float> finalState;
};

/// Both passes of `K`, by K::states(pass, ctas, seed) and K::outputs(pass, ctas, seed).
template <class K>
ForwardResults runForward(const ForwardCase& test, Maps content, int ctas, MapFormat format) {
  const ForwardSpec& spec = test.spec;
  LinearProblem problem = test.layout;
  problem.q.data = test.q.data();
  problem.k.data = test.k.data();
  problem.v.data = test.v.data();
  problem.gates.data = test.gates.data();
  const seqpar::test::GatedValues gated(test.v, problem, spec.seed);
  if (spec.inputGates) gated.giveTo(problem);

  SegmentStates first;
  first.problem = problem;
  const auto cut = test.segments(0);
  first.segments = cut.segments;
  if (!cut.spans.empty()) first.segments.spans = cut.spans.data();
  first.heads = {0, spec.heads};
  std::vector<float> workspace(stateMapsSize(problem, first.segments) / sizeof(float), NAN);
  first.maps = stateMapsIn(workspace.data(), problem, first.segments);
  first.content = content;
  first.format = format;
  K::states(first, ctas, spec.seed);
  if (content == Maps::Prefix) foldMaps(problem, first.segments, first.maps);

  const size_t rows = static_cast<size_t>(spec.batch * spec.tokens * spec.heads);
  ForwardResults results{
      std::vector<uint16_t>(rows * static_cast<size_t>(spec.dv), 0xffff),
      std::vector<float>(static_cast<size_t>(spec.batch * spec.heads * spec.dk) * static_cast<size_t>(spec.dv), NAN)};
  Outputs second;
  second.problem = problem;
  second.segments = first.segments;
  second.heads = first.heads;
  second.maps = first.maps;
  second.initial = spec.initial ? test.initial.data() : nullptr;
  second.out = {results.out.data(), spec.tokens * spec.heads * spec.dv, spec.dv, spec.tokens * spec.dv};
  second.finalState = results.finalState.data();
  second.content = content;
  second.format = format;
  K::outputs(second, ctas, spec.seed);
  return results;
}

/// With the inputs of `spec.seed`.
template <class K>
void checkForwardOf(const ForwardSpec& spec, Maps content, int ctas = 2, MapFormat format = MapFormat::RowMajor) {
  INFO(spec.name() << nameOf(content) << (format == MapFormat::Registers ? ", in registers' layout" : ""));
  ForwardCase test(spec);
  const ForwardResults results = runForward<K>(test, content, ctas, format);
  test.computeExpected();
  std::vector<double> found;
  for (const uint16_t bits : results.out) {
    found.push_back(spec.type == seqparBfloat16 ? bfloatToFloat(bits) : halfToFloat(bits));
  }
  checkWithin("output", test.out, found);
  checkWithin("final state", test.finalState, {results.finalState.begin(), results.finalState.end()});
}

template <class K>
void checkForward(ForwardSpec spec, Maps content, int ctas = 2, MapFormat format = MapFormat::RowMajor) {
  const seqpar::test::Seed seed;
  spec.seed = seed;
  checkForwardOf<K>(spec, content, ctas, format);
}

/// A decay of 0 discards an initial state that is not finite, within a chunk too. Gates: fp32.
template <class K>
void checkForgets(ForwardSpec spec, Maps content, int ctas = 2) {
  const seqpar::test::Seed seed;
  spec.seed = seed;
  std::mt19937_64 random(spec.seed);
  const auto sameNan = [](std::vector<double>& numbers) {
    for (double& number : numbers) number = std::isfinite(number) ? number : NAN;
  };
  for (const float value : {NAN, INFINITY}) {
    ForwardCase test(spec);
    for (float& number : test.initial) number = value;
    const auto start = static_cast<int64_t>(random() % static_cast<uint64_t>(spec.tokens));
    INFO(spec.name() << nameOf(content) << ": " << value << " until token " << start);
    const Input& strides = test.layout.gates;
    for (int64_t i = 0; i < spec.batch * spec.heads * spec.dk; ++i) {
      const int64_t head = i / spec.dk, at = head / spec.heads * strides.batch + start * strides.token +
                                             head % spec.heads * strides.head + i % spec.dk;
      reinterpret_cast<float*>(test.gates.data())[at] = -INFINITY;
    }
    const ForwardResults results = runForward<K>(test, content, ctas, MapFormat::RowMajor);
    test.computeExpected();
    sameNan(test.out.value);
    std::vector<double> found;
    for (const uint16_t bits : results.out) {
      found.push_back(spec.type == seqparBfloat16 ? bfloatToFloat(bits) : halfToFloat(bits));
    }
    sameNan(found);
    // Strong decays become 0 in fp32 after some tokens.
    for (size_t i = 0; i < found.size() && spec.decays != Decays::Typical; ++i) {
      const auto token = static_cast<int64_t>(i / static_cast<size_t>(spec.dv)) % spec.tokens;
      if (token > 0 && std::isnan(test.out.value[i])) found[i] = NAN;
    }
    checkWithin("output", test.out, found);
    checkWithin("final state", test.finalState, {results.finalState.begin(), results.finalState.end()});
  }
}

/// The results of other packed sequences have the same bits if all inputs of one sequence are NaN or infinite.
template <class K>
void checkSequencesApart(ForwardSpec spec, Maps content, int ctas = 2) {
  const seqpar::test::Seed seed;
  spec.seed = seed;
  const ForwardCase test(spec);
  const ForwardResults results = runForward<K>(test, content, ctas, MapFormat::RowMajor);
  const auto& bounds = test.starts;  // the last is the end
  if (bounds.empty()) return;
  const auto states = static_cast<size_t>(spec.dk) * static_cast<size_t>(spec.dv);
  std::mt19937_64 random(spec.seed);
  for (const float value : {NAN, INFINITY}) {
    const size_t end = random() % bounds.size();
    const int64_t from = end == 0 ? 0 : bounds[end - 1], to = bounds[end];
    INFO(spec.name() << nameOf(content) << ": " << value << " from token " << from << " to " << to);
    ForwardCase other = test;
    for (const Place place : {Place::Queries, Place::Keys, Place::Values, Place::Gates}) {
      other.poison(place, value, from, to);
    }
    if (end == 0) other.poison(Place::Initial, value, from, to);
    const ForwardResults found = runForward<K>(other, content, ctas, MapFormat::RowMajor);
    size_t wrong = 0;
    for (size_t i = 0; i < found.out.size(); ++i) {
      const auto token = static_cast<int64_t>(i / static_cast<size_t>(spec.dv)) % spec.tokens;
      if (token < from || token >= to) wrong += found.out[i] != results.out[i];
    }
    CHECK(wrong == 0);
    if (to == spec.tokens) continue;
    for (size_t i = 0; i < states * static_cast<size_t>(spec.heads); ++i) {
      wrong += found.finalState[i] != results.finalState[i];
    }
    CHECK(wrong == 0);
  }
}

}  // namespace seqpar::attn::test
