// Errors of the gradients of several ranks against those of one rank.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "operator.h"
#include "reference.h"

/// The absolute values of the inputs. Their gradients are the sums of the magnitudes of all terms of a gradient.
inline Inputs withoutSigns(const Inputs& inputs) {
  Inputs result = inputs;
  for (auto* numbers : {&result.q, &result.k, &result.v}) {
    for (auto& number : *numbers) number = std::abs(number);
  }
  return result;
}

/// Differences of `mine`, tokens first ... of the text, from `whole`, relative to a bound: fp32 rounds each term, of
/// magnitude `sizes`, once per sum (dk, dv, a chunk's 64 tokens, twice) and 6 times per decay factor; 1024 factors
/// reduce it to nothing at this gate's mean of -0.04. Gradients of decays are differences of sums over the later
/// tokens: of |q dq| and |k dk| over a chunk, and of all later chunks.
inline Deviation compareGradients(const Inputs& all, const Outputs& whole, const Outputs& sizes, const Outputs& mine,
                                  size_t first, const Shape& shape) {
  const double unit = 2 * 0x1p-24 * static_cast<double>(shape.dk + shape.dv + 128 + 6 * 1024);
  const size_t keys = shape.heads * shape.dk, values = shape.heads * shape.dv;
  Deviation deviation;
  const auto add = [&](double found, double expected, double magnitude) {
    double difference = std::abs(found - expected);
    if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
    if (difference == 0) return;
    deviation.add({difference, difference / magnitude, difference / (unit * magnitude), std::abs(expected)});
  };
  for (size_t i = 0; i < mine.dq.size(); ++i) {
    const size_t at = first * keys + i;
    add(mine.dq[i], whole.dq[at], sizes.dq[at]);
    add(mine.dk[i], whole.dk[at], sizes.dk[at]);
    double chunk = 0, behind = 0;
    for (size_t t = 0; t < 64 && at + t * keys < all.q.size(); ++t) {
      const size_t later = at + t * keys;
      chunk += std::abs(all.q[later]) * sizes.dq[later] + std::abs(all.k[later]) * sizes.dk[later];
      behind = std::max(behind, static_cast<double>(sizes.dLogDecay[later]));
    }
    add(mine.dLogDecay[i], whole.dLogDecay[at], chunk + behind);
  }
  for (size_t i = 0; i < mine.dv.size(); ++i) {
    add(mine.dv[i], whole.dv[first * values + i], sizes.dv[first * values + i]);
  }
  return deviation;
}
