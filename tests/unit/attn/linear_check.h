// Linear attention through the plan, on ranks that are threads, against the recurrence in fp64.
#pragma once

#include "linear_call.h"
#include "rank_threads.h"

namespace seqpar::attn::test {

using seqpar::test::farFrom;

/// More terms than any sum of the case has, with those of its products of decays.
inline double termsOf(const LinearCase& c) {
  return static_cast<double>(3 * c.tokens + c.dk + c.dv + 100);
}

/// `moreTerms` and `leastOfStates`: what arithmetic in fewer bits than fp32 adds to the bounds, as farFrom() takes
/// them; the latter for states and their gradients.
inline void check(const RankThreads& ranks, const LinearCase& c, const std::vector<int64_t>& lengths,
                  const LinearOptions& options, double moreTerms = 0, double leastOfStates = 0) {
  std::vector<size_t> borders(lengths.size() + 1, 0);
  for (size_t r = 0; r < lengths.size(); ++r) borders[r + 1] = borders[r] + static_cast<size_t>(lengths[r]);
  REQUIRE(borders.back() == c.tokens);
  const seqpar::test::LinearReference expected(c, borders);
  const double terms = termsOf(c) + moreTerms;
  std::vector<LinearResult> results(lengths.size());
  const auto said = ranks.each(
      [&](int rank) { return runLinear(c, lengths, rank, ranks[rank], options, results[static_cast<size_t>(rank)]); });
  const size_t keys = c.keyHeads * c.dk, values = c.heads * c.dv;
  std::vector<float> dFixed(c.heads, 0.0f), dInitial(expected.dInitial.value.size(), 0.0f);
  for (size_t r = 0; r < results.size(); ++r) {
    const auto& mine = results[r];
    const size_t begin = borders[r], end = borders[r + 1];
    CAPTURE(r, begin, end);
    REQUIRE(said[r] == "");
    CHECK(farFrom(tokensOf(c, expected.out, values, begin, end), mine.out, terms, c.dataType) == "");
    if (c.cuSeqlens.empty() && (r % 2 == 0 || r + 1 == results.size())) {
      CHECK(farFrom(expected.before[r + 1], mine.final, terms, seqparFloat32, 0, leastOfStates) == "");
    }
    if (!options.training) continue;
    if (c.cuSeqlens.empty()) {
      CHECK(farFrom(expected.before[r], mine.saved, terms, seqparFloat32, 0, leastOfStates) == "");
    }
    CHECK(farFrom(tokensOf(c, expected.dq, keys, begin, end), mine.dq, terms, c.dataType) == "");
    CHECK(farFrom(tokensOf(c, expected.dk, keys, begin, end), mine.dk, terms, c.dataType) == "");
    CHECK(farFrom(tokensOf(c, expected.dv, values, begin, end), mine.dv, terms, c.dataType) == "");
    if (c.gateWidth() != 0) {
      CHECK(farFrom(tokensOf(c, expected.dGate, c.heads * c.gateWidth(), begin, end), mine.dGate, terms, c.gateType) ==
            "");
    }
    for (size_t h = 0; c.family == seqparAttnFixed && h < c.heads; ++h) dFixed[h] += mine.dGate[h];
    for (size_t i = 0; !c.cuSeqlens.empty() && i < dInitial.size(); ++i) dInitial[i] += mine.dInitial[i];
  }
  CHECK(farFrom(expected.final, results.back().final, terms, seqparFloat32, 0, leastOfStates) == "");
  if (options.training) {
    const bool packed = !c.cuSeqlens.empty();
    if (c.family == seqparAttnFixed) CHECK(farFrom(expected.dGate, dFixed, terms, c.gateType) == "");
    if (!options.initialGradient) return;
    CHECK(farFrom(expected.dInitial, packed ? dInitial : results[0].dInitial, terms, seqparFloat32, 0, leastOfStates) ==
          "");
  }
}

}  // namespace seqpar::attn::test
