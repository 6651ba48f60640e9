// Random inputs of gated linear attention, its definition token by token in fp64, and the check against it.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "seqpar/attn.h"

/// How strong the decays of a case are.
enum class Decay { None, Weak, Strong, Mixed };

/// A whole sequence and everything that goes in.
struct GlaCase {
  size_t batch, tokens, heads, dk, dv;
  bool hasInitial;
  float scale = 0.0f;  ///< as in seqparGlaParams_t
  std::vector<float> q, k, v, logDecay, initial;

  GlaCase(size_t batches, size_t length, size_t headCount, size_t keySize, size_t valueSize, Decay decay,
          bool withInitial, unsigned seed)
      : batch(batches), tokens(length), heads(headCount), dk(keySize), dv(valueSize), hasInitial(withInitial) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::exponential_distribution<float> exponential;
    const auto fill = [&](std::vector<float>& numbers, size_t count) {
      numbers.resize(count);
      for (auto& number : numbers) number = normal(random);
    };
    fill(q, batch * tokens * heads * dk);
    fill(k, q.size());
    fill(v, batch * tokens * heads * dv);
    if (hasInitial) fill(initial, batch * heads * dk * dv);
    logDecay.resize(q.size());
    for (auto& number : logDecay) {
      const float sample = exponential(random);
      switch (decay) {
        case Decay::None:
          number = 0.0f;
          break;
        case Decay::Weak:
          number = -0.05f * sample;
          break;
        case Decay::Strong:
          number = -5.0f * sample;
          break;
        case Decay::Mixed:
          // Free rows, strong ones and rows that forget everything, next to each other.
          number = sample < 0.7f ? 0.0f : sample < 2.5f ? -3.0f * sample : -INFINITY;
          break;
      }
    }
  }

  seqparGlaParams_t params(size_t tokensHere) const {
    seqparGlaParams_t result = SEQPAR_GLA_PARAMS_INITIALIZER;
    result.batch = static_cast<int64_t>(batch);
    result.tokens = static_cast<int64_t>(tokensHere);
    result.heads = static_cast<int64_t>(heads);
    result.dk = static_cast<int64_t>(dk);
    result.dv = static_cast<int64_t>(dv);
    result.scale = scale;
    return result;
  }
  size_t stateSize() const { return batch * heads * dk * dv; }

  /// Tokens begin ... end - 1 of every batch entry of an array with `width` numbers a token.
  std::vector<float> slice(const std::vector<float>& numbers, size_t width, size_t begin, size_t end) const {
    std::vector<float> part;
    for (size_t b = 0; b < batch; ++b) {
      const auto start = numbers.begin() + static_cast<std::ptrdiff_t>((b * tokens + begin) * width);
      part.insert(part.end(), start, start + static_cast<std::ptrdiff_t>((end - begin) * width));
    }
    return part;
  }
};

/// Numbers and, for each, the same sum with every term made positive: what rounding errors are in proportion to.
struct Expected {
  std::vector<double> value, magnitude;
};

/// The definition, from the first to the last token, and the states before token `split[i]` of each split.
struct GlaReference {
  Expected out;
  std::vector<Expected> states;

  GlaReference(const GlaCase& c, const std::vector<size_t>& splits) {
    const double scale = c.scale != 0 ? static_cast<double>(c.scale) : 1 / std::sqrt(static_cast<double>(c.dk));
    out.value.resize(c.batch * c.tokens * c.heads * c.dv);
    out.magnitude.resize(out.value.size());
    states.resize(splits.size());
    for (auto& state : states) {
      state.value.resize(c.stateSize());
      state.magnitude.resize(c.stateSize());
    }
    for (size_t b = 0; b < c.batch; ++b) {
      for (size_t h = 0; h < c.heads; ++h) {
        const size_t stateAt = (b * c.heads + h) * c.dk * c.dv;
        std::vector<double> s(c.dk * c.dv, 0.0), m(c.dk * c.dv, 0.0);
        for (size_t i = 0; c.hasInitial && i < s.size(); ++i) {
          s[i] = c.initial[stateAt + i];
          m[i] = std::abs(s[i]);
        }
        for (size_t t = 0; t <= c.tokens; ++t) {
          for (size_t i = 0; i < splits.size(); ++i) {
            if (splits[i] != t) continue;
            std::copy(s.begin(), s.end(), states[i].value.begin() + static_cast<std::ptrdiff_t>(stateAt));
            std::copy(m.begin(), m.end(), states[i].magnitude.begin() + static_cast<std::ptrdiff_t>(stateAt));
          }
          if (t == c.tokens) break;
          const size_t row = (b * c.tokens + t) * c.heads + h;
          for (size_t d = 0; d < c.dk; ++d) {
            const double alpha = std::exp(static_cast<double>(c.logDecay[row * c.dk + d]));
            const double key = c.k[row * c.dk + d];
            const double query = scale * static_cast<double>(c.q[row * c.dk + d]);
            for (size_t e = 0; e < c.dv; ++e) {
              const double value = c.v[row * c.dv + e];
              double& state = s[d * c.dv + e];
              double& magnitude = m[d * c.dv + e];
              state = alpha * state + key * value;
              magnitude = alpha * magnitude + std::abs(key * value);
              out.value[row * c.dv + e] += query * state;
              out.magnitude[row * c.dv + e] += std::abs(query) * magnitude;
            }
          }
        }
      }
    }
  }
};

/// Fails where a number is further from the expected one than fp32 arithmetic can bring it. A term passes at most six
/// units of rounding for each token whose decay it meets (four in exp, good to two units in the last place; one in the
/// product; one in sums of logarithms and of states) and one for each number of the chunk and of dk that it is added
/// to.
inline void checkClose(const std::vector<float>& actual, const Expected& expected, const GlaCase& c) {
  constexpr double kUnit = 0x1p-24;
  constexpr double kUnderflow = 1e-30;  // far below every magnitude here, far above fp32's smallest number times a sum
  const double roundings = 6.0 * static_cast<double>(c.tokens) + static_cast<double>(c.dk) + 128;
  REQUIRE(actual.size() == expected.value.size());
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - expected.value[i]);
    const double share = error / (roundings * kUnit * expected.magnitude[i] + kUnderflow);
    if (!(share <= worst)) {  // NaN too
      worst = share;
      at = i;
    }
    if (std::isnan(share)) break;
  }
  if (actual.empty()) return;
  CAPTURE(at, actual[at], expected.value[at], expected.magnitude[at]);
  CHECK(worst <= 1.0);
}
