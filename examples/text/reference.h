// The definition of gated linear attention, token by token in fp64, and errors of a result against it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "text.h"

/// Errors of outputs against the definition.
struct Deviation {
  double absolute = 0;  ///< largest |actual - exact|
  double relative = 0;  ///< largest |actual - exact| relative to the sum of the magnitudes of the output's terms
  double ofBound = 0;   ///< largest error relative to the rounding bound; more than 1 is wrong
  double largest = 0;   ///< largest |exact|

  void add(const Deviation& other) {
    absolute = std::max(absolute, other.absolute);
    relative = std::max(relative, other.relative);
    ofBound = std::max(ofBound, other.ofBound);
    largest = std::max(largest, other.largest);
  }
};

/// One head's state and, for each element, the sum of its terms' magnitudes and a bound of the rounding error of an
/// fp32 computation.
///
/// The bound is a running error analysis. With u = 2^-24, a term is rounded at most 6 times per token with a decay
/// applied to it: 4 u for an exponential good to two units in the last place, u for the product, u for sums of
/// logarithms and of chunks. It is part of one sum of up to 64 tokens in its chunk, and of one sum of dk rows in its
/// output.
class HeadState {
 public:
  explicit HeadState(size_t size) : value_(size), magnitude_(size), error_(size) {}

  void step(const float* k, const float* v, const float* logDecay, size_t dk, size_t dv) {
    for (size_t d = 0; d < dk; ++d) {
      const double decay = std::exp(static_cast<double>(logDecay[d])), key = k[d];
      for (size_t e = 0, i = d * dv; e < dv; ++e, ++i) {
        const double term = key * static_cast<double>(v[e]);
        value_[i] = decay * value_[i] + term;
        magnitude_[i] = decay * magnitude_[i] + std::abs(term);
        error_[i] = decay * error_[i] + 6 * kUnit * magnitude_[i];
      }
    }
  }

  /// Compares out[dv] with scale * q^T S.
  void compare(const float* q, const float* out, size_t dk, size_t dv, Deviation& deviation) const {
    const double scale = 1 / std::sqrt(static_cast<double>(dk));
    for (size_t e = 0; e < dv; ++e) {
      double exact = 0, magnitude = 0, bound = 0;
      for (size_t d = 0; d < dk; ++d) {
        const double query = scale * static_cast<double>(q[d]);
        const size_t i = d * dv + e;
        exact += query * value_[i];
        magnitude += std::abs(query) * magnitude_[i];
        bound += std::abs(query) * (error_[i] + static_cast<double>(dk + 128) * kUnit * magnitude_[i]);
      }
      double difference = std::abs(static_cast<double>(out[e]) - exact);
      if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
      if (difference == 0) continue;
      deviation.add({difference, difference / magnitude, difference / bound, std::abs(exact)});
    }
  }

 private:
  static constexpr double kUnit = 0x1p-24;
  std::vector<double> value_, magnitude_, error_;
};

/// Compares `out`, the outputs of tokens first ... of the text, with the definition, which starts at the first token of
/// the text for any `first`.
inline Deviation compareWithDefinition(const Inputs& all, std::span<const float> out, size_t first,
                                       const Shape& shape) {
  const auto [heads, dk, dv] = shape;
  const size_t end = first + out.size() / (heads * dv);
  Deviation deviation;
  if (end == first) return deviation;
  for (size_t h = 0; h < heads; ++h) {
    HeadState state(dk * dv);
    for (size_t t = 0; t < end; ++t) {
      const size_t row = t * heads + h;
      state.step(&all.k[row * dk], &all.v[row * dv], &all.logDecay[row * dk], dk, dv);
      if (t >= first) state.compare(&all.q[row * dk], &out[((t - first) * heads + h) * dv], dk, dv, deviation);
    }
  }
  return deviation;
}
