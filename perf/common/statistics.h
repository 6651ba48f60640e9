// Statistics of repeated times.
#pragma once

#include <span>
#include <vector>

#include "settings.h"

namespace seqpar::perf {

/// Combines the ranks' values into one; NaN entries are ignored.
double combine(std::span<const double> ranks, Average how);
double mean(std::span<const double> values);
double median(std::vector<double> values);
/// The smallest value with at least a fraction `share` of the values less than or equal to it.
double quantile(std::vector<double> values, double share);

/// Statistics of at least one value.
struct Statistics {
  explicit Statistics(const std::vector<double>& values);
  double min, max, mean, p50, p95, p99, deviation;
  /// The deviation in percent of the mean.
  double variation() const { return mean > 0 ? 100 * deviation / mean : 0; }
};

}  // namespace seqpar::perf
