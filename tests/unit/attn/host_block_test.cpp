// The host block kernel on several threads, for any number of processors.
#include "attn/block/host.h"
#include "attn/block/host_tiles.h"
#include "common/covering.h"
#include "unit/seed.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

struct Results {
  std::vector<float> out, lse, dq, dk, dv;
};

/// Attention of `rows` queries to `columns` keys with a band, forward and backward, on `threads` threads.
Results compute(int threads, int64_t rows, int64_t columns, const std::vector<float>& numbers,
                const std::vector<Rectangle>& rectangles) {
  HostExec exec(threads, nullptr);
  BlockShape shape;
  shape.heads = 6;
  shape.kvHeads = 2;
  shape.group = 3;
  shape.headDim = shape.valueDim = 8;
  shape.scale = 0.3f;
  HostBlock block(exec, shape);
  Arena counting;
  block.carve(counting);
  const auto memory = exec.allocate(counting.used(), "a test");
  Arena arena(memory.get());
  block.carve(arena);
  auto inputs = numbers;
  const auto view = [&](size_t part, int64_t tokens, int64_t heads) {
    return denseTensor(inputs.data() + part * numbers.size() / 4, seqparFloat32, 1, tokens, heads, 8);
  };
  const Tensor q = view(0, rows, 6), k = view(1, columns, 2), v = view(2, columns, 2), dOut = view(3, rows, 6);
  const auto count = [](int64_t n) { return static_cast<size_t>(n); };
  Results r{std::vector<float>(count(rows * 48)), std::vector<float>(count(rows * 6)),
            std::vector<float>(count(rows * 48)), std::vector<float>(count(columns * 16)),
            std::vector<float>(count(columns * 16))};
  std::vector<float> delta(r.lse.size());
  const auto sums = [&](std::vector<float>& to, int64_t tokens, int64_t heads) {
    return denseTensor(to.data(), seqparFloat32, 1, tokens, heads, 8);
  };
  const Partial partial{sums(r.out, rows, 6), denseRows(r.lse.data(), 1, 6, rows)};
  const auto attention = block.accumulate(partial, {}, {});
  attention->add({q, k, v}, rectangles);
  attention->finish(nullptr, partial.out, {});
  const Rows deltas = denseRows(delta.data(), 1, 6, rows);
  block.delta(partial.out, dOut, deltas);
  block.backward({q, k, v, dOut, partial.lse, deltas, partial.out}, rectangles,
                 BlockGradients{sums(r.dq, rows, 6), sums(r.dk, columns, 2), sums(r.dv, columns, 2)});
  return r;
}

/// The definition in fp64, for the query heads of key head 1 (3, 4 and 5). Other heads' values are 0. *dqTerms: the
/// largest sum of absolute values of the products in an element of dq, times those in their exponents: larger than dq
/// where products cancel.
Results define(int64_t rows, int64_t columns, const std::vector<float>& numbers,
               const std::vector<Rectangle>& rectangles, double* dqTerms = nullptr) {
  const auto count = [](int64_t n) { return static_cast<size_t>(n); };
  const size_t part = numbers.size() / 4;
  const float *q = numbers.data(), *k = q + part, *v = k + part, *dOut = v + part;
  const auto sees = [&](int64_t i, int64_t j) {
    return std::any_of(rectangles.begin(), rectangles.end(), [&](const Rectangle& r) {
      return i >= r.row && i < r.row + r.rows && j >= r.column && j < r.column + r.columns &&
             j - r.column >= i - r.row + std::max(r.lower, -rows) &&
             j - r.column <= i - r.row + std::min(r.upper, rows + columns);
    });
  };
  const auto dot = [](const float* a, const float* b) {
    double sum = 0;
    for (int d = 0; d < 8; ++d) sum += double{a[d]} * b[d];
    return sum;
  };
  const auto terms = [](const auto* a, const float* b) {
    double sum = 0;
    for (int d = 0; d < 8; ++d) sum += std::abs(double{a[d]} * b[d]);
    return sum;
  };
  std::vector<double> out(count(rows * 48)), dq(count(rows * 48)), dk(count(columns * 16)), dv(count(columns * 16));
  std::vector<double> p(count(columns));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t h = 3; h < 6; ++h) {
      const size_t at = count(i * 48 + h * 8);
      double sum = 0, delta = 0;
      for (int64_t j = 0; j < columns; ++j) {
        const size_t key = count(j * 16 + 8);
        sum += p[count(j)] = sees(i, j) ? std::exp(0.3f * dot(q + at, k + key)) : 0.0;
      }
      for (int64_t j = 0; j < columns; ++j) {
        p[count(j)] /= sum;
        for (size_t d = 0; d < 8; ++d) out[at + d] += p[count(j)] * v[count(j * 16 + 8) + d];
      }
      for (size_t d = 0; d < 8; ++d) delta += out[at + d] * dOut[at + d];
      const double deltaTerms = terms(&out[at], dOut + at);
      std::array<double, 8> sums{};
      for (int64_t j = 0; j < columns; ++j) {
        const size_t key = count(j * 16 + 8);
        const double exponents = 1 + 0.3f * terms(q + at, k + key);  // roundings of a score change its exponential
        const double slopes = 0.3f * p[count(j)] * (terms(dOut + at, v + key) + deltaTerms) * exponents;
        for (size_t d = 0; d < 8; ++d) sums[d] += slopes * std::abs(k[key + d]);
      }
      if (dqTerms != nullptr) *dqTerms = std::max(*dqTerms, *std::max_element(sums.begin(), sums.end()));
      for (int64_t j = 0; j < columns; ++j) {
        const size_t key = count(j * 16 + 8);
        const double weight = p[count(j)], slope = 0.3f * weight * (dot(dOut + at, v + key) - delta);
        for (size_t d = 0; d < 8; ++d) {
          dq[at + d] += slope * k[key + d];
          dk[key + d] += slope * q[at + d];
          dv[key + d] += weight * dOut[at + d];
        }
      }
    }
  }
  const auto floats = [](const std::vector<double>& from) { return std::vector<float>(from.begin(), from.end()); };
  return {floats(out), {}, floats(dq), floats(dk), floats(dv)};
}

void checkSameBits(const Results& a, const Results& b) {
  CHECK(a.out == b.out);
  CHECK(a.lse == b.lse);
  CHECK(a.dq == b.dq);
  CHECK(a.dk == b.dk);
  CHECK(a.dv == b.dv);
}

/// The largest difference where `expected` is not 0, relative to the largest expected value, or to `terms`.
double errorOf(const std::vector<float>& expected, const std::vector<float>& got, double terms = 0) {
  double most = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) continue;
    most = std::max(most, std::abs(double{expected[i]}));
    const double difference = std::abs(double{expected[i]} - got[i]);
    if (!(difference <= error)) error = difference;
  }
  return error / (terms == 0 ? most : terms);
}

TEST_CASE("wide tiles, with and without an edge of the mask, agree with the definition on any number of threads") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  constexpr int64_t kQueries = 3100, kKeys = 1400;
  std::vector<float> numbers(4 * kQueries * 48);
  for (auto& number : numbers) number = normal(random);
  const std::vector<Rectangle> rectangles{{0, kQueries, 0, 400},
                                          {0, kQueries, 400, 1000, std::numeric_limits<int64_t>::min(), -900}};
  for (const auto& r : rectangles) REQUIRE(rowsOfTile(r, 2) == kWideRows);
  double dqTerms = 0;
  const auto expected = define(kQueries, kKeys, numbers, rectangles, &dqTerms);
  const auto one = compute(seqpar::test::kSanitized ? 3 : 1, kQueries, kKeys, numbers, rectangles);
  CHECK(errorOf(expected.out, one.out) < 2e-6);
  CHECK(errorOf(expected.dq, one.dq, dqTerms) < 2e-7);
  // Sums of 9300 terms; the others have 1400.
  CHECK(errorOf(expected.dk, one.dk) < 1e-5);
  CHECK(errorOf(expected.dv, one.dv) < 1e-5);
  if (!seqpar::test::kSanitized) checkSameBits(one, compute(3, kQueries, kKeys, numbers, rectangles));
}

TEST_CASE("tiles are wide where the mask hides few keys of a tile and there is work for threads") {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::min(), kAll = std::numeric_limits<int64_t>::max();
  CHECK(rowsOfTile({0, 2048, 0, 2048, kNone, kAll}, 8) == kWideRows);
  CHECK(rowsOfTile({0, 2048, 0, 2048, kNone, kAll}, 2) == kRows);
  CHECK(rowsOfTile({0, 767, 0, 4, kNone, kAll}, 8) == kRows);
  CHECK(rowsOfTile({0, 768, 0, 4, kNone, kAll}, 8) == kWideRows);
  CHECK(rowsOfTile({0, 2048, 0, 2048, kNone, 0}, 8) == kWideRows);  // causal
  CHECK(rowsOfTile({0, 1000, 0, 1000, kNone, 0}, 8) == kRows);
  CHECK(rowsOfTile({0, 8192, 0, 8192, -255, 0}, 8) == kRows);  // windows
  CHECK(rowsOfTile({0, 8192, 0, 8192, -1023, 0}, 8) == kWideRows);
}

TEST_CASE("the host block kernel gives the same bits on any number of threads") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 300, kColumns = 700;
  std::vector<float> numbers(4 * kColumns * 48);
  for (auto& number : numbers) number = normal(random);
  const std::vector<Rectangle> rectangles{{0, 200, 0, 400}, {100, 200, 400, 300, -20, 100}};
  const auto one = compute(1, kRows, kColumns, numbers, rectangles);
  for (const int threads : {2, 3, 5}) {
    CAPTURE(threads);
    checkSameBits(one, compute(threads, kRows, kColumns, numbers, rectangles));
  }
}

TEST_CASE("scores of infinity and NaN agree with the definition") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto run = [](float score) {  // one query, one key, of 8 elements; only the first is nonzero
    std::vector<float> numbers(4 * 48, 0.0f);
    for (size_t h = 0; h < 6; ++h) numbers[h * 8] = score;
    numbers[48] = numbers[56] = 1;
    for (size_t i = 0; i < 16; ++i) numbers[96 + i] = 2;
    return compute(1, 1, 1, numbers, {{0, 1, 0, 1}});
  };
  const auto nothing = run(-kInf);
  CHECK(nothing.out == std::vector<float>(48, 0.0f));
  CHECK(nothing.lse == std::vector<float>(6, -kInf));
  CHECK(nothing.dq == std::vector<float>(48, 0.0f));
  CHECK(std::isnan(run(NAN).out[0]));
  CHECK(std::isnan(run(kInf).out[0]));
}

}  // namespace
