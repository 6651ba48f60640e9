// What many times come to.
#pragma once

#include <span>
#include <vector>

#include "settings.h"

namespace seqpar::perf {

/// One number for the ranks' numbers; NaN entries do not count.
double combine(std::span<const double> ranks, Average how);
double mean(std::span<const double> values);
double median(std::vector<double> values);
/// The least value that at least `share` of the values do not exceed.
double quantile(std::vector<double> values, double share);

/// Of at least one value.
struct Statistics {
  explicit Statistics(const std::vector<double>& values);
  double min, max, mean, p50, p95, p99, deviation;
  /// The deviation in percent of the mean.
  double variation() const { return mean > 0 ? 100 * deviation / mean : 0; }
};

}  // namespace seqpar::perf
