// Linear attention through the plan, on ranks that are threads, against the recurrence in fp64.
#pragma once

#include <algorithm>
#include <chrono>

#include "linear_call.h"
#include "rank_threads.h"

namespace seqpar::attn::test {

using seqpar::test::farFrom;
using seqpar::test::saturated;

/// More terms than any sum of the case contains, including those of its products of decays.
inline double termsOf(const LinearCase& c) {
  return static_cast<double>(3 * c.tokens + c.dk + c.dv + 100);
}

/// Kernels for types of 16 bits round q, k, the states and the scores to them before they multiply them: each term at
/// most 8 times, each time by half an ulp.
inline double termsOfType(int type) {
  constexpr double kRoundings = 8;
  return type == seqparFloat32 ? 0 : kRoundings * (type == seqparBfloat16 ? 0x1p15 : 0x1p13);
}

/// fp16 values are at least 2^-24 apart, so keys and queries times their decays are rounded by 2^-25 even if they are
/// tiny. Per token, a state adds the product of one such value with an element of v or of out's gradient.
inline double leastOfStates(const LinearCase& c) {
  if (c.dataType != seqparFloat16) return 0;
  double most = 0;
  for (const auto* tensor : {&c.v, &c.dOut}) {
    for (const float number : *tensor) most = std::max(most, static_cast<double>(std::abs(number)));
  }
  return 0x1p-25 * static_cast<double>(c.tokens) * most;
}

/// The number of tokens before each rank's tokens.
inline std::vector<size_t> bordersOf(const std::vector<int64_t>& lengths) {
  std::vector<size_t> borders(lengths.size() + 1, 0);
  for (size_t r = 0; r < lengths.size(); ++r) borders[r + 1] = borders[r] + static_cast<size_t>(lengths[r]);
  return borders;
}

/// Expected results and their bounds. `moreTerms` and `leastOfStates` extend the bounds for arithmetic with fewer bits
/// than fp32, as parameters of farFrom(); the latter applies to states and their gradients.
struct LinearExpected {
  const LinearCase& c;
  const std::vector<int64_t>& lengths;
  const LinearOptions& options;
  const seqpar::test::LinearReference& reference;  ///< of bordersOf(lengths)
  double moreTerms = 0, leastOfStates = 0;
  /// Packed: a sequence with arbitrary results, as has dGate of heads then; -1: none.
  long spoiled = -1;
  const Bounded* dInput = nullptr;  ///< of calls with an input gate; its type is that of the options
};

/// "" or the first difference.
inline std::string differences(const LinearExpected& expected, const std::vector<LinearResult>& results) {
  const LinearCase& c = expected.c;
  const auto& reference = expected.reference;
  const auto borders = bordersOf(expected.lengths);
  const double terms = termsOf(c) + expected.moreTerms;
  const bool packed = !c.cuSeqlens.empty(), training = expected.options.training, some = expected.spoiled >= 0;
  const auto spoiled = static_cast<size_t>(expected.spoiled);
  const size_t from = some ? static_cast<size_t>(c.cuSeqlens[spoiled]) : 0;
  const size_t to = some ? static_cast<size_t>(c.cuSeqlens[spoiled + 1]) : 0;
  std::string text;
  const auto note = [&](const char* name, const std::string& far) {
    if (text.empty() && !far.empty()) text = std::string(name) + ": " + far;
  };
  const auto states = [&](const char* name, const Bounded& numbers, const std::vector<float>& found) {
    note(name, farFrom(numbers, found, terms, seqparFloat32, 0, expected.leastOfStates));
  };
  const size_t keys = c.keyHeads * c.dk, values = c.heads * c.dv;
  Bounded dGate = reference.dGate;
  if (expected.options.placement != nullptr) {  // kernels for GPUs
    const auto sums = static_cast<double>(3 * 64 + c.dk + c.dv + 100);
    for (size_t i = 0; i < reference.dGateEarlier.size(); ++i) {
      dGate.magnitude[i] += reference.dGateEarlier[i] * std::min(sums / terms, 1.0);
    }
  }
  std::vector<float> dFixed(c.heads, 0.0f), dInitial(reference.dInitial.value.size(), 0.0f);
  for (size_t r = 0; r < results.size(); ++r) {
    const auto& mine = results[r];
    const size_t begin = borders[r], end = borders[r + 1];
    const auto tokens = [&](const char* name, const Bounded& all, size_t row, std::vector<float> found, int type) {
      const Bounded part = tokensOf(c, all, row, begin, end);
      for (size_t i = 0; i < found.size() && some; ++i) {
        const size_t token = begin + i / row;
        if (token >= from && token < to) found[i] = static_cast<float>(saturated(part.value[i], type));
      }
      note((std::string(name) + " of rank " + std::to_string(r)).c_str(), farFrom(part, found, terms, type));
    };
    tokens("out", reference.out, values, mine.out, c.dataType);
    if (!packed && (r % 2 == 0 || r + 1 == results.size())) states("final", reference.before[r + 1], mine.final);
    if (!training) continue;
    if (!packed) states("saved", reference.before[r], mine.saved);
    tokens("dq", reference.dq, keys, mine.dq, c.dataType);
    tokens("dk", reference.dk, keys, mine.dk, c.dataType);
    tokens("dv", reference.dv, values, mine.dv, c.dataType);
    if (c.gateWidth() != 0) tokens("dGate", dGate, c.heads * c.gateWidth(), mine.dGate, c.gateType);
    if (c.hasBeta()) tokens("dBeta", reference.dBeta, c.heads, mine.dBeta, c.betaType);
    if (expected.dInput != nullptr) {
      tokens("dInput", *expected.dInput, c.heads, mine.dInput, expected.options.inputGateType);
    }
    for (size_t h = 0; c.perHead() && h < c.heads; ++h) dFixed[h] += mine.dGate[h];
    for (size_t i = 0; packed && i < dInitial.size(); ++i) dInitial[i] += mine.dInitial[i];
  }
  if (!some || to != c.tokens) states("final of the last rank", reference.final, results.back().final);
  if (!training) return text;
  if (c.perHead() && !some) note("dGate", farFrom(reference.dGate, dFixed, terms, c.gateType));
  if (!expected.options.initialGradient) return text;
  const size_t width = packed ? dInitial.size() / (c.cuSeqlens.size() - 1) : 0;
  for (size_t i = spoiled * width; some && i < (spoiled + 1) * width; ++i) {
    dInitial[i] = static_cast<float>(reference.dInitial.value[i]);
  }
  states("dInitial", reference.dInitial, packed ? dInitial : results[0].dInitial);
  return text;
}

/// Seconds that check() spent on references and on calls of all ranks.
struct LinearTimes {
  double references = 0, calls = 0, longestCall = 0;
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};
inline LinearTimes linearTimes;

inline void check(const RankThreads& ranks, const LinearExpected& expected) {
  const LinearCase& c = expected.c;
  const auto& lengths = expected.lengths;
  REQUIRE(bordersOf(lengths).back() == c.tokens);
  std::vector<LinearResult> results(lengths.size());
  const double begin = LinearTimes::now();
  const auto said = ranks.each([&](int rank) {
    return runLinear(c, lengths, rank, ranks[rank], expected.options, results[static_cast<size_t>(rank)]);
  });
  const double took = LinearTimes::now() - begin;
  linearTimes.calls += took;
  linearTimes.longestCall = std::max(linearTimes.longestCall, took);
  for (const auto& text : said) REQUIRE(text == "");
  CHECK(differences(expected, results) == "");
}

inline seqpar::test::LinearReference referenceOf(const LinearCase& c, const std::vector<int64_t>& lengths) {
  const double begin = LinearTimes::now();
  seqpar::test::LinearReference reference(c, bordersOf(lengths));
  linearTimes.references += LinearTimes::now() - begin;
  return reference;
}

inline void check(const RankThreads& ranks, const LinearCase& c, const std::vector<int64_t>& lengths,
                  const LinearOptions& options, double moreTerms = 0, double leastOfStates = 0) {
  const auto reference = referenceOf(c, lengths);
  check(ranks, {c, lengths, options, reference, moreTerms, leastOfStates});
}

}  // namespace seqpar::attn::test
