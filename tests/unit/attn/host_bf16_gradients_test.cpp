// The host block kernel's backward on bf16 inputs, with all kernels that this processor supports.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "host_bf16_case.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn;             // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::bf16_case;  // NOLINT(google-build-using-namespace)

struct Gradients {
  std::vector<float> dq, dk, dv;
  bool operator==(const Gradients&) const = default;
};

/// The sums of a backward pass whose lse and delta are given.
Gradients computeGradients(const Problem& p, Inputs& in, Values& dOut, std::vector<float>& lse,
                           std::vector<float>& delta, const Bf16Kernels* kernels, int threads) {
  BlockWithMemory made(p, kernels, threads);
  HostBlock& block = made.block;
  const auto& s = p.shape;
  const auto view = [](auto& values, seqparDataType_t type, int64_t tokens, int64_t heads, int64_t dim) {
    return denseTensor(values.data(), type, 1, tokens, heads, dim);
  };
  Gradients g{std::vector<float>(in.q.bits.size()), std::vector<float>(in.k.bits.size()),
              std::vector<float>(in.v.bits.size())};
  const BlockGradientInputs inputs{view(in.q.bits, seqparBfloat16, p.rows, s.heads, s.headDim),
                                   view(in.k.bits, seqparBfloat16, p.columns, s.kvHeads, s.headDim),
                                   view(in.v.bits, seqparBfloat16, p.columns, s.kvHeads, s.valueDim),
                                   view(dOut.bits, seqparBfloat16, p.rows, s.heads, s.valueDim),
                                   denseRows(lse.data(), 1, s.heads, p.rows),
                                   denseRows(delta.data(), 1, s.heads, p.rows),
                                   {}};
  block.backward(inputs, p.rectangles,
                 BlockGradients{view(g.dq, seqparFloat32, p.rows, s.heads, s.headDim),
                                view(g.dk, seqparFloat32, p.columns, s.kvHeads, s.headDim),
                                view(g.dv, seqparFloat32, p.columns, s.kvHeads, s.valueDim)});
  return g;
}

/// Expected sums, and bounds of their errors: weights p and gradients of scores are rounded to bf16, which changes each
/// term by at most 2^-8 of its size; the polynomial of 2^x and the fp32 sums change a term's factors by less than 2^-14
/// of their terms' sizes.
struct ExpectedGradients {
  explicit ExpectedGradients(const Inputs& in)
      : dq(in.q.bits.size()), dk(in.k.bits.size()), dv(in.v.bits.size()), dqBound(dq), dkBound(dk), dvBound(dv) {}
  std::vector<double> dq, dk, dv, dqBound, dkBound, dvBound;

  void addRow(const Problem& p, const Inputs& in, const Values& dOut, int64_t row, int64_t h, float& lse,
              float& delta) {
    const auto& s = p.shape;
    const auto dim = static_cast<size_t>(s.headDim), width = static_cast<size_t>(s.valueDim);
    const auto token = [](int64_t t, int64_t heads, int64_t head) { return static_cast<size_t>(t * heads + head); };
    const size_t q = token(row, s.heads, h) * dim, o = token(row, s.heads, h) * width;
    struct Key {
      size_t k, v;
      double p, product = 0, size = 0;
    };
    std::vector<Key> keys;
    double sum = 0, exactDelta = 0;
    for (int64_t column = 0; column < p.columns; ++column) {
      if (!sees(p.rectangles[0], row, column) && !sees(p.rectangles[1], row, column)) continue;
      const size_t at = token(column, s.kvHeads, h / s.group);
      Key key{at * dim, at * width, 0};
      for (size_t i = 0; i < dim; ++i) key.p += double{in.q.exact[q + i]} * in.k.exact[key.k + i];
      key.p = std::exp(key.p * s.scale);
      for (size_t i = 0; i < width; ++i) {
        const double term = double{in.v.exact[key.v + i]} * dOut.exact[o + i];
        key.product += term;
        key.size += std::abs(term);
      }
      sum += key.p;
      exactDelta += key.p * key.product;
      keys.push_back(key);
    }
    lse = static_cast<float>(std::log(sum));  // -inf without a key
    exactDelta = keys.empty() ? 0 : exactDelta / sum;
    delta = static_cast<float>(exactDelta);
    for (const Key& key : keys) {
      const double weight = key.p / sum, gradient = weight * (key.product - exactDelta);
      const double error = 0x1p-8 * std::abs(gradient) + 0x1p-14 * weight * (key.size + std::abs(exactDelta));
      for (size_t i = 0; i < width; ++i) {
        dv[key.v + i] += weight * dOut.exact[o + i];
        dvBound[key.v + i] += (0x1p-8 + 0x1p-14) * weight * std::abs(dOut.exact[o + i]);
      }
      for (size_t i = 0; i < dim; ++i) {
        dq[q + i] += gradient * s.scale * in.k.exact[key.k + i];
        dqBound[q + i] += error * s.scale * std::abs(in.k.exact[key.k + i]);
        dk[key.k + i] += gradient * s.scale * in.q.exact[q + i];
        dkBound[key.k + i] += error * s.scale * std::abs(in.q.exact[q + i]);
      }
    }
  }
};

void checkWithin(const std::vector<float>& got, const std::vector<double>& expected, const std::vector<double>& bound) {
  for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - expected[i]) <= bound[i] + 1e-30);
}

TEST_CASE("gradients of bf16 attention agree with fp64 with all kernels, on any number of threads") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 6; ++round) {
    Problem p = draw(random);
    auto& s = p.shape;
    s.softcap = 0;  // with a softcap, gradients are computed in fp32
    CAPTURE(round, p.rows, p.columns, s.heads, s.kvHeads, s.headDim, s.valueDim);
    const auto values = [&](int64_t count) { return Values(static_cast<size_t>(count), random); };
    Inputs in{values(p.rows * s.heads * s.headDim), values(p.columns * s.kvHeads * s.headDim),
              values(p.columns * s.kvHeads * s.valueDim)};
    Values dOut = values(p.rows * s.heads * s.valueDim);
    std::vector<float> lse(static_cast<size_t>(p.rows * s.heads)), delta = lse;
    ExpectedGradients expected(in);
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t row = 0; row < p.rows; ++row) {
        const auto at = static_cast<size_t>(h * p.rows + row);
        expected.addRow(p, in, dOut, row, h, lse[at], delta[at]);
      }
    }
    for (const auto& kernels : testedKernels()) {
      CAPTURE(kernels.name);
      const auto got = computeGradients(p, in, dOut, lse, delta, &kernels, 1);
      checkWithin(got.dq, expected.dq, expected.dqBound);
      checkWithin(got.dk, expected.dk, expected.dkBound);
      checkWithin(got.dv, expected.dv, expected.dvBound);
      CHECK(got == computeGradients(p, in, dOut, lse, delta, &kernels, 7));
    }
  }
}

TEST_CASE("bf16 attention: in gradients, NaN reaches neither queries from hidden keys nor hidden keys from queries") {
  std::mt19937 random(1);
  const Problem p = smallProblem({{0, 1, 0, 90, 13, 43}, {1, 19, 1, 89, 13, 43}});  // row i sees keys i + 13 to i + 43
  const auto hidden = [](size_t i) { return i < size_t{13} * 32 || i >= size_t{63} * 32; };
  Inputs in{Values(20 * 32, random), Values(90 * 32, random), Values(90 * 32, random)};
  Values dOut(20 * 32, random);
  std::vector<float> lse(20, 1.0f), delta(20, 0.5f);
  for (const auto& kernels : testedKernels()) {
    CAPTURE(kernels.name);
    const Gradients expected = computeGradients(p, in, dOut, lse, delta, &kernels, 1);
    Inputs keys = in;
    for (size_t i = 0; i < keys.k.exact.size(); ++i) {
      if (hidden(i)) keys.k.exact[i] = keys.v.exact[i] = NAN;
    }
    keys.k.round();
    keys.v.round();
    CHECK(computeGradients(p, keys, dOut, lse, delta, &kernels, 1) == expected);
    Inputs queries = in;
    std::fill(queries.q.exact.begin(), queries.q.exact.end(), NAN);
    queries.q.round();
    Values of = dOut;
    std::fill(of.exact.begin(), of.exact.end(), NAN);
    of.round();
    const Gradients found = computeGradients(p, queries, of, lse, delta, &kernels, 1);
    for (size_t i = 0; i < found.dk.size(); ++i) {
      if (hidden(i)) REQUIRE((found.dk[i] == 0 && found.dv[i] == 0));
    }
  }
}

}  // namespace
