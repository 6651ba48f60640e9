#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/sgemm_kernels.h"
#include "unit/seed.h"

using namespace seqpar;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// An operand's memory: rows and columns after the transposition, NaN between the rows.
struct Drawn {
  Drawn(size_t rows, size_t columns, bool across, std::mt19937& random) : transposed(across) {
    const size_t lines = across ? columns : rows, length = across ? rows : columns;
    stride = length + random() % 3;
    numbers.assign(lines * stride + 1, kNan);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t i = 0; i < lines; ++i) {
      for (size_t j = 0; j < length; ++j) numbers[i * stride + j] = uniform(random);
    }
  }
  float at(size_t row, size_t column) const {
    return transposed ? numbers[column * stride + row] : numbers[row * stride + column];
  }
  Factor factor() const { return {numbers.data(), stride, transposed}; }
  bool transposed;
  size_t stride = 0;
  std::vector<float> numbers;
};

struct Sizes {
  size_t m, n, k;
};

Sizes draw(std::mt19937& random) {
  const auto size = [&](size_t most) { return random() % 4 == 0 ? 16 * (1 + random() % 8) : 1 + random() % most; };
  return {size(70), size(140), random() % 20 == 0 ? 0 : size(600)};
}

}  // namespace

TEST_CASE("sgemm agrees with fp64 and writes only its output") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const auto [m, n, k] = draw(random);
    const Drawn a(m, k, random() % 2 == 0, random), b(k, n, random() % 2 == 0, random);
    const bool accumulate = random() % 2 == 0;
    const size_t strideC = n + random() % 3;
    std::vector<float> before(m * strideC);
    for (float& number : before) number = static_cast<float>(random() % 1000) / 500 - 1;
    for (const Isa isa : supportedIsas()) {
      INFO(isaName(isa) << ", " << m << " x " << n << " x " << k << (a.transposed ? ", a transposed" : "")
                        << (b.transposed ? ", b transposed" : "") << (accumulate ? ", accumulated" : ""));
      std::vector<float> c = before;
      sgemmKernel(isa).multiply(m, n, k, a.factor(), b.factor(), accumulate, c.data(), strideC, nullptr);
      for (size_t i = 0; i < m; ++i) {
        for (size_t j = 0; j < strideC; ++j) {
          const float start = before[i * strideC + j];
          if (j >= n) {
            REQUIRE(c[i * strideC + j] == start);
            continue;
          }
          double sum = accumulate ? start : 0, magnitude = std::abs(sum);
          for (size_t p = 0; p < k; ++p) {
            const double product = static_cast<double>(a.at(i, p)) * b.at(p, j);
            sum += product;
            magnitude += std::abs(product);
          }
          // Each of k products and of k additions is off by at most half an ulp of the partial sum.
          const double bound = (2.0 * static_cast<double>(k) + 1) * std::ldexp(1.0, -24) * magnitude;
          if (!(std::abs(c[i * strideC + j] - sum) <= bound)) {
            FAIL("element " << i << ", " << j << ": got " << c[i * strideC + j] << ", expected " << sum << " +- "
                            << bound);
          }
        }
      }
    }
  }
}

TEST_CASE("sgemm gives the same bits however the product is split") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 30; ++round) {
    const auto [m, n, k] = draw(random);
    const Drawn a(m, k, false, random), b(k, n, random() % 2 == 0, random);
    for (const Isa isa : supportedIsas()) {
      std::vector<float> whole(m * n), part(m * n, kNan);
      sgemmKernel(isa).multiply(m, n, k, a.factor(), b.factor(), false, whole.data(), n, nullptr);
      const size_t row = random() % m, column = random() % n;
      const size_t rows = 1 + random() % (m - row), columns = 1 + random() % (n - column);
      const Factor left = {a.numbers.data() + row * a.stride, a.stride};
      const Factor right = {b.numbers.data() + column * (b.transposed ? b.stride : 1), b.stride, b.transposed};
      sgemmKernel(isa).multiply(rows, columns, k, left, right, false, part.data(), n, nullptr);
      for (size_t i = 0; i < rows; ++i) {
        INFO(isaName(isa) << ", row " << row + i << " of " << m << " x " << n << " x " << k);
        REQUIRE(std::memcmp(&part[i * n], &whole[(row + i) * n + column], columns * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("sgemm gives the same bits for parts of packed operands") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const auto [m, n, k] = draw(random);
    const Drawn a(m, k, random() % 2 == 0, random), b(k, n, random() % 2 == 0, random);
    const bool accumulate = random() % 2 == 0;
    const size_t firstRow = k == 0 ? 0 : random() % k, rows = k == 0 ? 0 : 1 + random() % (k - firstRow);
    const size_t firstColumn = random() % ((n + kPackedColumns - 1) / kPackedColumns) * kPackedColumns;
    const size_t columns = 1 + random() % (n - firstColumn);
    const Factor left{a.numbers.data() + firstRow * (a.transposed ? a.stride : 1), a.stride, a.transposed};
    const Factor right{
        b.numbers.data() + firstRow * (b.transposed ? 1 : b.stride) + firstColumn * (b.transposed ? b.stride : 1),
        b.stride, b.transposed};
    for (const Isa isa : supportedIsas()) {
      INFO(isaName(isa) << ", " << m << " x " << columns << " of " << n << " x " << rows << " of " << k
                        << (a.transposed ? ", a transposed" : "") << (b.transposed ? ", b transposed" : ""));
      const SgemmKernel& kernel = sgemmKernel(isa);
      std::vector<float> expected(m * columns, 0.25F), got = expected, packed(packedSize(k, n) + 1, kNan);
      kernel.multiply(m, columns, rows, left, right, accumulate, expected.data(), columns, nullptr);
      kernel.pack(k, n, b.factor(), packed.data());
      REQUIRE(std::isnan(packed.back()));
      kernel.multiplyPacked(m, columns, rows, left, {packed.data(), k, firstRow, firstColumn}, accumulate, got.data(),
                            columns, nullptr);
      REQUIRE(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("products walk over all memory ahead, in order") {
  const std::vector<std::byte> memory(6400);
  for (const Isa isa : supportedIsas()) {
    INFO(isaName(isa));
    Ahead ahead;
    ahead.add({memory.data(), 256, 200, 4});
    ahead.add({memory.data(), 256, 200, 0});
    ahead.add({memory.data(), 0, memory.size(), 1});
    REQUIRE(ahead.used == 2);
    const std::vector<float> a(24 * 64), b(64 * 32);
    std::vector<float> c(24 * 32);
    size_t before = 0, products = 0;
    while (ahead.entry < ahead.used) {
      sgemmKernel(isa).multiply(24, 32, 64, {a.data(), 64}, {b.data(), 32}, false, c.data(), 32, &ahead);
      const size_t position = (ahead.entry * 10 + ahead.row) * memory.size() + ahead.at;
      REQUIRE(position > before);
      before = position;
      // 16 + 100 cache lines, at 24 x 32 x 64 / 1024 = 48 per product.
      REQUIRE(++products <= 4);
    }
    ahead.clear();
    for (size_t i = 0; i < 2 * Ahead::kMost; ++i) ahead.add({memory.data(), 64, 64, 1});
    CHECK(ahead.used == Ahead::kMost);
  }
}
