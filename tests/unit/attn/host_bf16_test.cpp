// The host block kernel's forward on bf16 inputs, with all kernels that this processor supports.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "host_bf16_case.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn;             // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::bf16_case;  // NOLINT(google-build-using-namespace)

struct Results {
  std::vector<float> out, lse;
};

/// `type`: of results, which the block rounds.
Results compute(const Problem& p, Inputs& in, const Bf16Kernels* kernels, int threads, const float* sinks = nullptr,
                seqparDataType_t type = seqparFloat32) {
  BlockWithMemory made(p, kernels, threads);
  HostBlock& block = made.block;
  block.expect(p.rectangles, p.rows, p.columns, {.accumulated = true, .once = true, .sinks = sinks != nullptr});
  const auto& s = p.shape;
  const auto view = [](Values& values, int64_t tokens, int64_t heads, int64_t dim) {
    return denseTensor(values.bits.data(), seqparBfloat16, 1, tokens, heads, dim);
  };
  Results results{std::vector<float>(static_cast<size_t>(p.rows * s.heads * s.valueDim)),
                  std::vector<float>(static_cast<size_t>(p.rows * s.heads))};
  const Partial partial{denseTensor(results.out.data(), seqparFloat32, 1, p.rows, s.heads, s.valueDim),
                        denseRows(results.lse.data(), 1, s.heads, p.rows)};
  std::vector<uint16_t> rounded(results.out.size());
  Tensor out = partial.out;
  if (type == seqparBfloat16) out = denseTensor(rounded.data(), type, 1, p.rows, s.heads, s.valueDim);
  const auto attention = block.accumulate(partial, out, {});
  attention->add({view(in.q, p.rows, s.heads, s.headDim), view(in.k, p.columns, s.kvHeads, s.headDim),
                  view(in.v, p.columns, s.kvHeads, s.valueDim)},
                 p.rectangles);
  attention->finish(sinks, out, partial.lse);
  if (type == seqparBfloat16) seqpar::toFloat(rounded.data(), type, results.out.data(), rounded.size());
  return results;
}

/// Compares a row with fp64. Weights p are rounded to bf16, so a sum of terms p v is off by at most 2^-8 of the sum of
/// p |v|; the polynomial of 2^x and the fp32 sums add less than 2^-14 of it.
void checkRow(const Problem& p, const Inputs& in, const Results& results, int64_t row, int64_t h) {
  const auto& s = p.shape;
  const int64_t kvHead = h / s.group;
  std::vector<double> out(static_cast<size_t>(s.valueDim)), sizes = out;
  double sum = 0;
  for (int64_t column = 0; column < p.columns; ++column) {
    if (!sees(p.rectangles[0], row, column) && !sees(p.rectangles[1], row, column)) continue;
    double score = 0;
    for (int64_t i = 0; i < s.headDim; ++i) {
      score += double{in.q.exact[static_cast<size_t>((row * s.heads + h) * s.headDim + i)]} *
               in.k.exact[static_cast<size_t>((column * s.kvHeads + kvHead) * s.headDim + i)];
    }
    score *= s.scale;
    if (s.softcap != 0) score = s.softcap * std::tanh(score / s.softcap);
    const double weight = std::exp(score);
    sum += weight;
    for (int64_t i = 0; i < s.valueDim; ++i) {
      const double value = in.v.exact[static_cast<size_t>((column * s.kvHeads + kvHead) * s.valueDim + i)];
      out[static_cast<size_t>(i)] += weight * value;
      sizes[static_cast<size_t>(i)] += weight * std::abs(value);
    }
  }
  CAPTURE(row, h);
  const float lse = results.lse[static_cast<size_t>(h * p.rows + row)];
  if (sum == 0) {
    REQUIRE(lse == -std::numeric_limits<float>::infinity());
    return;
  }
  REQUIRE(std::abs(lse - std::log(sum)) < 2e-5);
  for (int64_t i = 0; i < s.valueDim; ++i) {
    const float found = results.out[static_cast<size_t>((row * s.heads + h) * s.valueDim + i)];
    const auto at = static_cast<size_t>(i);
    REQUIRE(std::abs(found - out[at] / sum) <= (0x1p-8 + 0x1p-14) * sizes[at] / sum + 1e-30);
  }
}

TEST_CASE("bf16 attention agrees with fp64 with all kernels, on any number of threads") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 12; ++round) {
    const Problem p = draw(random);
    const auto& s = p.shape;
    CAPTURE(round, p.rows, p.columns, s.heads, s.kvHeads, s.headDim, s.valueDim, s.softcap);
    const auto values = [&](int64_t count) { return Values(static_cast<size_t>(count), random); };
    Inputs in{values(p.rows * s.heads * s.headDim), values(p.columns * s.kvHeads * s.headDim),
              values(p.columns * s.kvHeads * s.valueDim)};
    for (const auto& kernels : testedKernels()) {
      CAPTURE(kernels.name);
      const auto results = compute(p, in, &kernels, 1);
      for (int64_t row = 0; row < p.rows; ++row)
        checkRow(p, in, results, row, static_cast<int64_t>(random()) % s.heads);
      const auto threaded = compute(p, in, &kernels, 3);
      CHECK(results.out == threaded.out);
      CHECK(results.lse == threaded.lse);
    }
  }
}

TEST_CASE("bf16 attention: threads change no bits of windows that are longer than a chunk of keys") {
  std::mt19937 random(1);
  Problem p;
  p.shape.type = seqparBfloat16;
  p.shape.headDim = p.shape.valueDim = 32;
  p.rows = p.columns = 4500;
  p.rectangles = {{0, p.rows, 0, p.columns}, {0, 0, 0, 0}};
  p.rectangles[0].lower = -2300;
  p.rectangles[0].upper = 0;
  const auto values = [&] { return Values(static_cast<size_t>(p.rows * 32), random); };
  Inputs in{values(), values(), values()};
  for (const auto& kernels : testedKernels()) {
    CAPTURE(kernels.name);
    const auto results = compute(p, in, &kernels, 1), threaded = compute(p, in, &kernels, 3);
    CHECK(results.out == threaded.out);
    CHECK(results.lse == threaded.lse);
  }
}

TEST_CASE("bf16 results of rows that are merged once are rounded sums, and 0 without a key") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 8; ++round) {
    Problem p = draw(random);
    const auto& s = p.shape;
    const int64_t border = static_cast<int64_t>(random() % static_cast<unsigned>(p.rows + 1));
    p.rectangles[0].rows = p.rectangles[1].row = border;
    p.rectangles[1].rows = p.rows - border;
    const bool sinks = random() % 2 == 0;
    CAPTURE(round, p.rows, p.columns, border, sinks, s.heads, s.headDim, s.valueDim);
    const auto values = [&](int64_t count) { return Values(static_cast<size_t>(count), random); };
    Inputs in{values(p.rows * s.heads * s.headDim), values(p.columns * s.kvHeads * s.headDim),
              values(p.columns * s.kvHeads * s.valueDim)};
    std::vector<float> sink(static_cast<size_t>(s.heads), 0.5f);
    for (const auto& kernels : testedKernels()) {
      CAPTURE(kernels.name);
      const Results expected = compute(p, in, &kernels, 1, sinks ? sink.data() : nullptr);
      const Results found = compute(p, in, &kernels, 3, sinks ? sink.data() : nullptr, seqparBfloat16);
      CHECK(found.lse == expected.lse);
      std::vector<uint16_t> rounded(expected.out.size());
      seqpar::fromFloat(expected.out.data(), rounded.data(), seqparBfloat16, rounded.size());
      std::vector<float> exact(rounded.size());
      seqpar::toFloat(rounded.data(), seqparBfloat16, exact.data(), exact.size());
      CHECK(found.out == exact);
    }
  }
}

TEST_CASE("bf16 attention: NaN in hidden keys has no effect, and infinite scores follow the definition") {
  std::mt19937 random(1);
  const Problem p = smallProblem({{0, 20, 0, 45}, {0, 20, 45, 0}});
  Inputs in{Values(20 * 32, random), Values(90 * 32, random), Values(90 * 32, random)};
  for (const auto& kernels : testedKernels()) {
    CAPTURE(kernels.name);
    Inputs poisoned = in;
    for (size_t i = size_t{45} * 32; i < size_t{90} * 32; ++i) poisoned.k.exact[i] = poisoned.v.exact[i] = NAN;
    poisoned.k.round();
    poisoned.v.round();
    CHECK(compute(p, in, &kernels, 1).out == compute(p, poisoned, &kernels, 1).out);
    Problem window = p;  // row i sees keys i + 13 to i + 43
    window.rectangles = {{0, 1, 0, 90, 13, 43}, {1, 19, 1, 89, 13, 43}};
    window.rows = 20;
    poisoned = in;
    for (size_t i = 0; i < size_t{13} * 32; ++i) poisoned.k.exact[i] = poisoned.v.exact[i] = NAN;
    for (size_t i = size_t{63} * 32; i < size_t{90} * 32; ++i) poisoned.k.exact[i] = poisoned.v.exact[i] = NAN;
    poisoned.k.round();
    poisoned.v.round();
    CHECK(compute(window, in, &kernels, 1).out == compute(window, poisoned, &kernels, 1).out);
    for (const float score : {-INFINITY, INFINITY, NAN}) {
      Problem one = p;
      one.rows = one.columns = 1;
      one.rectangles = {{0, 1, 0, 1}};
      Inputs single{Values(32, random), Values(32, random), Values(32, random)};
      std::fill(single.q.exact.begin(), single.q.exact.end(), 0.0f);
      single.q.exact[0] = score;
      single.k.exact[0] = 1;
      single.q.round();
      single.k.round();
      const auto results = compute(one, single, &kernels, 1);
      if (score < 0) {
        CHECK(results.lse[0] == -INFINITY);
        CHECK(results.out == std::vector<float>(32, 0.0f));
      } else {
        CHECK(std::isnan(results.out[0]));
      }
    }
  }
}

}  // namespace
