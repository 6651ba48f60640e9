// Calls of linear attention with an input gate, compared with calls with the products of values and gate.
#pragma once

#include <random>

#include "base/convert.h"
#include "linear_check.h"

namespace seqpar::attn::test {

inline std::vector<float> rounded(const std::vector<float>& numbers, int type) {
  const auto as = static_cast<seqparDataType_t>(type);
  std::vector<std::byte> bytes(numbers.size() * seqpar::sizeOf(as));
  seqpar::fromFloat(numbers.data(), bytes.data(), as, numbers.size());
  std::vector<float> back(numbers.size());
  seqpar::toFloat(bytes.data(), as, back.data(), numbers.size());
  return back;
}

template <class Random>
std::vector<float> gatesOf(const LinearCase& c, int type, Random& random) {
  std::uniform_real_distribution<float> draw(-1, 2);
  std::vector<float> gates(c.batch * c.tokens * c.heads);
  for (float& gate : gates) gate = random() % 8 == 0 ? 0 : draw(random);
  return rounded(gates, type);
}

/// x[i] times the gate of its row of `width` elements.
inline std::vector<float> timesGates(std::vector<float> x, const std::vector<float>& gates, size_t width) {
  for (size_t i = 0; i < x.size(); ++i) x[i] *= gates[i / width];
  return x;
}

/// Turns dv of `reference`, of the case with the products as v, into dv of `c`, and returns dInput.
inline Bounded addInputGate(seqpar::test::LinearReference& reference, const LinearCase& c,
                            const std::vector<float>& gates) {
  Bounded dInput;
  dInput.assign(gates.size());
  Bounded& dv = reference.dv;
  for (size_t i = 0; i < dv.value.size(); ++i) {
    const size_t row = i / c.dv;
    const auto v = static_cast<double>(c.v[i]), gate = static_cast<double>(gates[row]);
    dInput.value[row] += v * dv.value[i];
    dInput.magnitude[row] += std::abs(v) * dv.magnitude[i];
    dv.value[i] *= gate;
    dv.magnitude[i] *= std::abs(gate);
  }
  return dInput;
}

inline std::vector<LinearResult> runAll(const RankThreads& ranks, const LinearCase& c,
                                        const std::vector<int64_t>& lengths, const LinearOptions& options) {
  std::vector<LinearResult> results(lengths.size());
  const auto said = ranks.each(
      [&](int rank) { return runLinear(c, lengths, rank, ranks[rank], options, results[static_cast<size_t>(rank)]); });
  for (const auto& text : said) REQUIRE(text == "");
  return results;
}

/// A call with the gate gives the bits of a call with the products b v. Hosts do not round the products, and round
/// results from fp32; kernels for GPUs round both to the tensors' type.
inline void checkAgainstProducts(const LinearCase& c, const std::vector<int64_t>& lengths, const LinearOptions& options,
                                 const std::vector<float>& gates, const RankThreads& ranks) {
  const auto found = runAll(ranks, c, lengths, options);
  LinearCase products = c;
  if (options.placement == nullptr) products.dataType = seqparFloat32;
  products.v = rounded(timesGates(c.v, gates, c.dv), products.dataType);
  LinearOptions without = options;
  without.inputGate = nullptr;
  const auto expected = runAll(ranks, products, lengths, without);
  const auto borders = bordersOf(lengths);
  for (size_t r = 0; r < found.size(); ++r) {
    CAPTURE(r);
    const auto same = [&](const std::vector<float>& a, const std::vector<float>& b) {
      const auto expect = rounded(b, c.dataType);
      return std::equal(a.begin(), a.end(), expect.begin(), expect.end());
    };
    CHECK(same(found[r].out, expected[r].out));
    CHECK(same(found[r].dq, expected[r].dq));
    CHECK(same(found[r].dk, expected[r].dk));
    CHECK(found[r].saved == expected[r].saved);
    CHECK(found[r].dGate == expected[r].dGate);
    const auto mine = tokensOf(c, gates, c.heads, borders[r], borders[r + 1]);
    CHECK(same(found[r].dv, timesGates(expected[r].dv, mine, c.dv)));
    const auto v = tokensOf(c, c.v, c.heads * c.dv, borders[r], borders[r + 1]);
    REQUIRE(found[r].dInput.size() == mine.size());
    for (size_t row = 0; row < mine.size(); ++row) {
      double sum = 0, magnitude = 0;
      for (size_t i = row * c.dv; i < (row + 1) * c.dv; ++i) {
        const double term = static_cast<double>(v[i]) * static_cast<double>(expected[r].dv[i]);
        sum += term;
        magnitude += std::abs(term);
      }
      const double rounding = options.inputGateType == seqparBfloat16 ? 0x1p-8 * std::abs(sum) : 0;
      const double error = std::abs(static_cast<double>(found[r].dInput[row]) - sum);
      CHECK(error <= rounding + 0x1p-22 * static_cast<double>(c.dv + 1) * magnitude + 1e-30);
    }
  }
}

}  // namespace seqpar::attn::test
