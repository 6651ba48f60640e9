// Products with the lower triangle of a chunk's square matrix.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "attn/linear/host/triangle.h"
#include "attn/linear/host/vector.h"
#include "unit/seed.h"

namespace {

using namespace seqpar;                // NOLINT(google-build-using-namespace)
using namespace seqpar::attn::linear;  // NOLINT(google-build-using-namespace)

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kStride = 67;

/// Whether products may read or write this element: it is in a block up to the diagonal.
bool inBlocks(size_t i, size_t j) {
  return j / kTriangle <= i / kTriangle;
}

std::vector<float> numbers(size_t count, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> drawn(count);
  for (float& number : drawn) number = uniform(random);
  return drawn;
}

/// Lower triangular, NaN in the blocks above the diagonal.
std::vector<float> lower(size_t rows, std::mt19937& random) {
  auto l = numbers(rows * kStride, random);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = i + 1; j < kStride; ++j) l[i * kStride + j] = inBlocks(i, j) && j < rows ? 0.0f : kNan;
  }
  return l;
}

}  // namespace

TEST_CASE("products with a lower triangle agree with whole products") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    const size_t rows = 1 + random() % 64, columns = 1 + random() % 40;
    const bool transposed = random() % 2 == 0, accumulate = random() % 2 == 0, forgetting = random() % 2 == 0;
    const auto l = lower(rows, random), b = numbers(rows * columns, random), before = numbers(rows * columns, random);
    auto c = before;
    const Factor left{l.data(), kStride, transposed}, right{b.data(), columns};
    const bool packed = !transposed && !accumulate && random() % 2 == 0;
    CAPTURE(rows, columns, transposed, accumulate, forgetting, packed);
    if (packed) {
      std::vector<float> panels(packedSize(rows, columns));
      pack(rows, columns, right, panels.data());
      multiplyLowerPacked(rows, columns, left, {panels.data(), rows}, c.data(), columns);
    } else {
      (forgetting ? multiplyLowerForgetting : multiplyLower)(rows, columns, left, right, accumulate, c.data(), columns);
    }
    for (size_t i = 0; i < rows; ++i) {
      for (size_t e = 0; e < columns; ++e) {
        double sum = accumulate ? static_cast<double>(before[i * columns + e]) : 0.0;
        for (size_t j = 0; j < rows; ++j) {
          const size_t row = transposed ? j : i, column = transposed ? i : j;
          if (column > row) continue;
          sum += static_cast<double>(l[row * kStride + column]) * static_cast<double>(b[j * columns + e]);
        }
        REQUIRE(static_cast<double>(c[i * columns + e]) == Approx(sum).margin(1e-4));
      }
    }
  }
}

TEST_CASE("a product for a lower triangle writes the blocks up to the diagonal only") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    const size_t rows = 1 + random() % 64, inner = 1 + random() % 40;
    const bool transposed = random() % 2 == 0;
    const auto a = numbers(rows * inner, random), b = numbers(rows * inner, random);
    std::vector<float> c(rows * kStride, kNan);
    multiplyToLower(rows, inner, {a.data(), transposed ? rows : inner, transposed}, {b.data(), inner, true}, c.data(),
                    kStride);
    CAPTURE(rows, inner, transposed);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < kStride; ++j) {
        if (!inBlocks(i, j) || j >= rows) {
          REQUIRE(std::isnan(c[i * kStride + j]));
          continue;
        }
        double sum = 0;
        for (size_t d = 0; d < inner; ++d) {
          sum +=
              static_cast<double>(a[transposed ? d * rows + i : i * inner + d]) * static_cast<double>(b[j * inner + d]);
        }
        REQUIRE(static_cast<double>(c[i * kStride + j]) == Approx(sum).margin(1e-4));
      }
    }
  }
}

TEST_CASE("scores of a small block agree with fp64 and write only their block") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const bool whole = random() % 2 == 0;  // register blocks
    const size_t queries = whole ? 4 * (1 + random() % 4) : 1 + random() % 16;
    const size_t keys = whole ? 4 * (1 + random() % 4) : 1 + random() % 16;
    const size_t dk = whole ? 16 * (1 + random() % 8) : 1 + random() % 128;
    const auto q = numbers(queries * dk, random), k = numbers(keys * dk, random);
    std::vector<float> scores(queries * kStride, kNan);
    blockScores(q.data(), queries, k.data(), keys, dk, scores.data(), kStride);
    CAPTURE(queries, keys, dk);
    for (size_t i = 0; i < queries; ++i) {
      for (size_t j = 0; j < kStride; ++j) {
        if (j >= keys) {
          REQUIRE(std::isnan(scores[i * kStride + j]));
          continue;
        }
        double sum = 0;
        for (size_t d = 0; d < dk; ++d) {
          sum += static_cast<double>(q[i * dk + d]) * static_cast<double>(k[j * dk + d]);
        }
        REQUIRE(static_cast<double>(scores[i * kStride + j]) == Approx(sum).margin(1e-4));
      }
    }
  }
}
