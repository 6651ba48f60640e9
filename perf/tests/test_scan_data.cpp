#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "all_scan/scan_data.h"
#include "all_scan/shape.h"
#include "common/names.h"
#ifdef SEQPAR_PERF_MPI
#include "all_scan/affine_map.h"
#endif

using namespace seqpar::perf;

namespace {

constexpr seqparScanOp_t kOps[] = {seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix};
constexpr Shape kShape{3, 5, 4};

/// A_p x, as seqpar.h defines it.
std::vector<float> applied(seqparScanOp_t op, bool reverse, const std::vector<float>& a, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  const auto [heads, dk, dv] = kShape;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < dk; ++i) {
      for (size_t k = 0; k < dk; ++k) {
        float factor = i == k ? 1.0f : 0.0f;
        if (op == seqparScanScalar) factor *= a[h];
        if (op == seqparScanDiag) factor *= a[h * dk + i];
        if (op == seqparScanMatrix) factor = reverse ? a[(h * dk + k) * dk + i] : a[(h * dk + i) * dk + k];
        for (size_t j = 0; j < dv; ++j) y[(h * dk + i) * dv + j] += factor * x[(h * dk + k) * dv + j];
      }
    }
  }
  return y;
}

std::vector<float> sum(std::vector<float> left, const std::vector<float>& right) {
  for (size_t i = 0; i < left.size(); ++i) left[i] += right[i];
  return left;
}

}  // namespace

TEST_CASE("The expected results are those of the definition") {
  for (const seqparScanOp_t op : kOps) {
    for (const seqparDirection_t direction : {seqparForward, seqparReverse}) {
      std::vector<float> x(kShape.elements());
      for (int position = 0; position < 9; ++position) {
        CAPTURE(op, direction, position);
        const ScanData data(op, direction, kShape, position);
        REQUIRE(data.prefix() == x);
        x = sum(applied(op, direction == seqparReverse, data.transition(), x), data.state());
        REQUIRE(data.total() == x);
      }
    }
  }
}

TEST_CASE("Every intermediate composition is exact in bfloat16") {
  constexpr float kLargest = 32;
  for (const seqparScanOp_t op : kOps) {
    for (int first = 0; first < 4; ++first) {
      std::vector<float> s(kShape.elements());
      for (int position = first; position < first + 12; ++position) {
        CAPTURE(op, first, position);
        const ScanData data(op, seqparForward, kShape, position);
        s = sum(applied(op, false, data.transition(), s), data.state());
        for (const float value : s) {
          REQUIRE(std::fabs(value) <= kLargest);
          REQUIRE(value * 2 == std::floor(value * 2));
        }
      }
    }
  }
}

TEST_CASE("States of several ranks differ, and some factors are 0") {
  const ScanData one(seqparScanDiag, seqparForward, {8, 16, 4}, 1);
  const ScanData two(seqparScanDiag, seqparForward, {8, 16, 4}, 2);
  CHECK(one.state() != two.state());
  CHECK(one.transition() != two.transition());
  CHECK(std::count(one.transition().begin(), one.transition().end(), 0.0f) > 0);
}

TEST_CASE("Sizes become shapes") {
  const auto is = [](Shape shape, size_t heads, size_t dk, size_t dv) {
    return shape.heads == heads && shape.dk == dk && shape.dv == dv;
  };
  CHECK(is(shapeFor((2u << 20) / 4, {}), 32, 128, 128));
  CHECK(is(shapeFor(256, {}), 1, 2, 128));
  CHECK(is(shapeFor(100, {}), 1, 1, 100));
  CHECK(is(shapeFor(1u << 20, {32, 128, 0}), 32, 128, 256));
  CHECK(is(shapeFor(1u << 20, {0, 64, 64}), 256, 64, 64));
  CHECK(is(shapeFor(1000, {2, 3, 4}), 2, 3, 4));
  CHECK_THROWS_AS(shapeFor(0, {}), UsageError);
  CHECK_THROWS_AS(shapeFor(100, {2, 30, 4}), UsageError);
  CHECK_THROWS_AS(shapeFor(10, {0, 16, 16}), UsageError);
}

#ifdef SEQPAR_PERF_MPI
TEST_CASE("The peers' composition is the composition") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> small(-3, 3);
  const auto numbers = [&](size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(small(generator));
    return values;
  };
  for (const seqparScanOp_t op : kOps) {
    for (const bool reverse : {false, true}) {
      CAPTURE(op, reverse);
      const AffineMap map{op, reverse, kShape};
      const std::vector<float> x = numbers(kShape.elements());
      const std::vector<float> a1 = numbers(map.coefficients()), s1 = numbers(kShape.elements());
      std::vector<float> a2 = numbers(map.coefficients()), s2 = numbers(kShape.elements());
      const std::vector<float> between = sum(applied(op, reverse, a1, x), s1);
      const std::vector<float> want = sum(applied(op, reverse, a2, between), s2);

      std::vector<float> got(kShape.elements());
      map.apply(a2.data(), s2.data(), between.data(), got.data(), 0, map.units());
      CHECK(got == want);
      map.compose(a1.data(), s1.data(), a2.data(), s2.data());
      map.apply(a2.data(), s2.data(), x.data(), got.data(), 0, map.units());
      CHECK(got == want);
    }
  }
}
#endif
