// Random partial attention of several ranks, and its merge in fp64: for seqparAllReduceLse() and
// seqparReduceScatterLseByHeads() on hosts and GPUs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "base/convert.h"
#include "common/ranks.h"
#include "seqpar/lse.h"

namespace seqpar::test {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// All ranks' partial results, and their merge in fp64.
struct MergeCase {
  seqparDataType_t type = seqparFloat32;
  size_t rows = 0, heads = 0, dim = 0;
  std::vector<std::vector<std::byte>> out;  ///< [rank][rows][heads][dim]
  std::vector<std::vector<float>> lse;      ///< [rank][rows][heads]
  std::vector<double> expectedOut, expectedLse;

  size_t results() const { return rows * heads; }
  size_t rowBytes() const { return dim * sizeOf(type); }
};

inline double valueAt(const std::vector<std::byte>& bytes, seqparDataType_t type, size_t index) {
  float value = 0;
  toFloat(bytes.data() + index * sizeOf(type), type, &value, 1);
  return value;
}

inline void merge(MergeCase& c) {
  for (size_t row = 0; row < c.results(); ++row) {
    double most = kNothing, sum = 0;
    for (const auto& lse : c.lse) most = std::isnan(lse[row]) ? kNaN : std::max(most, static_cast<double>(lse[row]));
    for (const auto& lse : c.lse) sum += lse[row] == kNothing ? 0 : std::exp(lse[row] - most);
    const bool none = most == static_cast<double>(kNothing);
    c.expectedLse.push_back(none ? most : most + std::log(sum));
    for (size_t i = 0; i < c.dim; ++i) {
      double value = 0;
      for (size_t rank = 0; rank < c.lse.size(); ++rank) {
        if (c.lse[rank][row] == kNothing) continue;
        value += std::exp(c.lse[rank][row] - most) / sum * valueAt(c.out[rank], c.type, row * c.dim + i);
      }
      c.expectedOut.push_back(value);
    }
  }
}

/// Values for a shape. A third of the parts are empty, with NaN in their memory; `emptyRank`, which may not exist, has
/// no tokens; one row may have a NaN.
inline void fill(MergeCase& c, std::mt19937_64& random, size_t ranks) {
  const size_t emptyRank = random() % (2 * ranks);
  const size_t nanRow = random() % (4 * c.results());
  std::normal_distribution<float> normal;
  for (size_t rank = 0; rank < ranks; ++rank) {
    auto& lse = c.lse.emplace_back(c.results());
    std::vector<float> out(c.results() * c.dim);
    for (size_t row = 0; row < lse.size(); ++row) {
      lse[row] = rank == emptyRank || random() % 3 == 0 ? kNothing : 20 * normal(random);
      if (row == nanRow && rank == 0) lse[row] = kNaN;
      for (size_t i = 0; i < c.dim; ++i) out[row * c.dim + i] = lse[row] == kNothing ? kNaN : normal(random);
    }
    fromFloat(out.data(), c.out.emplace_back(out.size() * sizeOf(c.type)).data(), c.type, out.size());
  }
  merge(c);
}

inline MergeCase randomMerge(std::mt19937_64& random, size_t ranks, bool large) {
  MergeCase c;
  c.type = static_cast<seqparDataType_t>(random() % 3);
  c.rows = large ? 40 + random() % 100 : 1 + random() % 9;
  c.heads = 1 + random() % (large ? 12 : 7);
  c.dim = large ? 64 + random() % 70 : 1 + random() % 40;
  fill(c, random, ranks);
  return c;
}

inline seqparLseParams_t paramsOf(const MergeCase& c) {
  seqparLseParams_t params = SEQPAR_LSE_PARAMS_INITIALIZER;
  params.dataType = c.type;
  params.rows = static_cast<int64_t>(c.rows);
  params.heads = static_cast<int64_t>(c.heads);
  params.headDim = static_cast<int64_t>(c.dim);
  return params;
}

/// Heads [first, first + count) of the first `rows` rows.
inline void compare(const MergeCase& c, const std::vector<std::byte>& out, const std::vector<float>& lse, size_t first,
                    size_t count, size_t rows) {
  const double eps = c.type == seqparFloat32 ? 2e-5 : c.type == seqparFloat16 ? 2e-3 : 1.6e-2;
  for (size_t i = 0; i < rows * count; ++i) {
    const size_t row = i / count * c.heads + first + i % count;
    const double expected = c.expectedLse[row];
    const bool same = std::isnan(expected)   ? std::isnan(lse[i])
                      : std::isinf(expected) ? static_cast<double>(lse[i]) == expected
                                             : std::abs(lse[i] - expected) < 1e-5 * (1 + std::abs(expected));
    expect(same, "lse of row ", row, " is ", lse[i], ", expected ", expected);
    for (size_t e = 0; e < c.dim; ++e) {
      const double value = valueAt(out, c.type, i * c.dim + e);
      const double right = c.expectedOut[row * c.dim + e];
      const bool near = std::isnan(expected)   ? std::isnan(value)
                        : std::isinf(expected) ? value == 0
                                               : std::abs(value - right) < eps * (1 + std::abs(right));
      expect(near, "out of row ", row, " is ", value, ", expected ", right);
    }
  }
}

}  // namespace seqpar::test
