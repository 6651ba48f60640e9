#include "attn/linear/chunk.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace seqpar::attn;

TEST_CASE("the exponential is within two units in the last place from 0 down to where it vanishes") {
  std::vector<float> x;
  for (float value = 0.0f; value > -120.0f; value -= 0.00317f) x.push_back(value);
  std::vector<float> y(x.size());
  exponentiate(x.data(), x.size(), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const double unit = std::max(exact * 0x1p-23, 0x1p-149);
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / unit);
  }
  CAPTURE(worst);
  CHECK(worst <= 2.0);
}

TEST_CASE("the exponential is exact where it must be") {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0.0f, -0.0f, -infinity, -1e30f, infinity, std::nanf("")};
  exponentiate(x.data(), x.size(), x.data());
  CHECK(x[0] == 1.0f);
  CHECK(x[1] == 1.0f);
  CHECK(x[2] == 0.0f);
  CHECK(x[3] == 0.0f);
  CHECK(x[4] == infinity);
  CHECK(std::isnan(x[5]));
}

/// Decays that are powers of two and small integers elsewhere, so that every product and sum is exact.
struct ExactChunk {
  size_t rows, dk;
  std::vector<float> q, k, decay;

  ExactChunk(size_t rowCount, size_t keySize) : rows(rowCount), dk(keySize) {
    std::mt19937 random(7);
    for (size_t i = 0; i < rows * dk; ++i) {
      q.push_back(static_cast<float>(static_cast<int>(random() % 7) - 3));
      k.push_back(static_cast<float>(static_cast<int>(random() % 7) - 3));
      decay.push_back(random() % 6 == 0 ? 0.5f : 1.0f);
    }
  }
  /// The decay of tokens first ... last - 1.
  float between(size_t d, size_t first, size_t last) const {
    float product = 1;
    for (size_t t = first; t < last; ++t) product *= decay[t * dk + d];
    return product;
  }
};

TEST_CASE("scores, decayed keys and the chunk's decay are exact where the arithmetic is") {
  const size_t rows = GENERATE(1, 15, 16, 17, 32, 63, 64);
  const size_t dk = GENERATE(1, 5, 16, 33);
  CAPTURE(rows, dk);
  const ExactChunk chunk(rows, dk);
  std::vector<float> k = chunk.k, product(dk), scores(kChunk * kChunk, -1.0f), scratch((kSubBlock + 1) * dk);
  scoresOfChunk(chunk.q.data(), chunk.decay.data(), rows, dk, k.data(), product.data(), scores.data(), scratch.data());
  size_t wrong = 0;
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < rows; ++j) {
      float expected = 0;
      for (size_t d = 0; j <= i && d < dk; ++d) {
        expected += chunk.q[i * dk + d] * chunk.k[j * dk + d] * chunk.between(d, j + 1, i + 1);
      }
      wrong += scores[i * kChunk + j] != expected;
    }
  }
  CHECK(wrong == 0);
  std::vector<float> plainKeys = chunk.k, plainProduct(dk);
  decayKeysToEnd(chunk.decay.data(), rows, dk, plainKeys.data(), plainProduct.data());
  for (size_t d = 0; d < dk; ++d) {
    wrong += product[d] != chunk.between(d, 0, rows);
    for (size_t t = 0; t < rows; ++t) wrong += k[t * dk + d] != chunk.k[t * dk + d] * chunk.between(d, t + 1, rows);
  }
  CHECK(wrong == 0);
  CHECK(plainKeys == k);
  CHECK(plainProduct == product);
}

TEST_CASE("a state row whose decay is 0 takes nothing from the incoming state, NaN included") {
  std::vector<float> factor = {0.0f, 0.5f};
  std::vector<float> incoming = {std::nanf(""), std::nanf(""), 2.0f, 4.0f};
  std::vector<float> state = {1.0f, 2.0f, 3.0f, 4.0f};
  addDecayedState(factor.data(), incoming.data(), 2, 2, state.data());
  CHECK(state == std::vector<float>{1.0f, 2.0f, 4.0f, 6.0f});
}

}  // namespace
