// The definition of causal softmax attention and its gradients in fp64, and errors of results against it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "text.h"

/// A tensor of the definition: each element, the sum of its terms' magnitudes, and a bound of the fp32 error.
struct Exact {
  std::vector<double> value, magnitude, bound;
  explicit Exact(size_t size = 0) : value(size), magnitude(size), bound(size) {}

  void add(size_t at, double term, double size, double error) {
    value[at] += term;
    magnitude[at] += size;
    bound[at] += error;
  }
};

/// All of [tokens][heads][dim].
struct SoftmaxReference {
  Exact out, dq, dk, dv;
  explicit SoftmaxReference(size_t size) : out(size), dq(size), dk(size), dv(size) {}
};

/// Adds the contributions of queries first ... end - 1.
///
/// The bound: with u = 2^-24, a score of d terms has an error of (d + 4) u of its terms' magnitudes, which its
/// exponential and the row's sum inherit as relative errors, twice; a sum of n terms adds n u of the terms' magnitudes,
/// and values computed from sums (delta, dp) add the lengths of the sums.
inline void addQueries(const Inputs& in, const std::vector<float>& dOut, const Shape& shape, size_t first, size_t end,
                       SoftmaxReference& to) {
  constexpr double kUnit = 0x1p-24;
  const auto [heads, dim, valueDim] = shape;
  const size_t tokens = in.q.size() / (heads * dim);
  const double scale = 1 / std::sqrt(static_cast<double>(dim)), lengths = static_cast<double>(tokens + 4 * dim + 16);
  std::vector<double> weights(tokens), errors(tokens);
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = first; i < end; ++i) {
      const float* const q = &in.q[(i * heads + h) * dim];
      const float* const gradient = &dOut[(i * heads + h) * dim];
      double most = -std::numeric_limits<double>::infinity(), sum = 0;
      double error = 0;  // largest error of a score in the row; the row's sum inherits it
      for (size_t j = 0; j <= i; ++j) {
        const float* const k = &in.k[(j * heads + h) * dim];
        double score = 0, size = 0;
        for (size_t d = 0; d < dim; ++d) {
          const double term = static_cast<double>(q[d]) * static_cast<double>(k[d]);
          score += term;
          size += std::abs(term);
        }
        weights[j] = scale * score;
        errors[j] = static_cast<double>(dim + 4) * kUnit * scale * size;
        error = std::max(error, errors[j]);
        most = std::max(most, weights[j]);
      }
      for (size_t j = 0; j <= i; ++j) sum += weights[j] = std::exp(weights[j] - most);
      double delta = 0, deltaSize = 0;
      const size_t row = (i * heads + h) * dim;
      for (size_t j = 0; j <= i; ++j) {
        weights[j] /= sum;
        const float* const v = &in.v[(j * heads + h) * dim];
        for (size_t d = 0; d < dim; ++d) {
          const double term = weights[j] * static_cast<double>(v[d]), size = std::abs(term);
          to.out.add(row + d, term, size, (errors[j] + error + lengths * kUnit) * size);
        }
      }
      for (size_t d = 0; d < dim; ++d) {
        delta += static_cast<double>(gradient[d]) * to.out.value[row + d];
        deltaSize += std::abs(static_cast<double>(gradient[d])) * to.out.magnitude[row + d];
      }
      for (size_t j = 0; j <= i; ++j) {
        const size_t column = (j * heads + h) * dim;
        double dp = 0, dpSize = 0;
        for (size_t d = 0; d < dim; ++d) {
          const double term = static_cast<double>(gradient[d]) * static_cast<double>(in.v[column + d]);
          dp += term;
          dpSize += std::abs(term);
        }
        const double ds = scale * weights[j] * (dp - delta), dsSize = scale * weights[j] * (dpSize + deltaSize);
        const double relative = 2 * (errors[j] + error) + lengths * kUnit;
        for (size_t d = 0; d < dim; ++d) {
          const double k = in.k[column + d], query = q[d], g = gradient[d];
          to.dq.add(row + d, ds * k, dsSize * std::abs(k), relative * dsSize * std::abs(k));
          to.dk.add(column + d, ds * query, dsSize * std::abs(query), relative * dsSize * std::abs(query));
          to.dv.add(column + d, weights[j] * g, weights[j] * std::abs(g), relative * weights[j] * std::abs(g));
        }
      }
    }
  }
}

/// The largest errors of `found`, the rows of the tokens at `positions`, relative to the magnitude and to the bound.
struct Errors {
  double relative = 0, ofBound = 0;

  void add(const Errors& other) {
    relative = std::max(relative, other.relative);
    ofBound = std::max(ofBound, other.ofBound);
  }
  void compare(const std::vector<float>& found, const Exact& exact, const std::vector<int64_t>& positions,
               size_t width) {
    for (size_t i = 0; i < found.size(); ++i) {
      const size_t at = static_cast<size_t>(positions[i / width]) * width + i % width;
      double difference = std::abs(static_cast<double>(found[i]) - exact.value[at]);
      if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
      if (difference > 0) add({difference / exact.magnitude[at], difference / exact.bound[at]});
    }
  }
};
