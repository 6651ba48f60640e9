#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace seqpar::perf {

double combine(std::span<const double> ranks, Average how) {
  if (how == Average::Rank0) return ranks[0];
  std::vector<double> valid;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(valid), [](double value) { return !std::isnan(value); });
  if (valid.empty()) return std::numeric_limits<double>::quiet_NaN();
  if (how == Average::Mean) return mean(valid);
  return how == Average::Least ? *std::min_element(valid.begin(), valid.end())
                               : *std::max_element(valid.begin(), valid.end());
}

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto position = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(position, 1, values.size()) - 1];
}

Statistics::Statistics(const std::vector<double>& values)
    : min(*std::min_element(values.begin(), values.end())),
      max(*std::max_element(values.begin(), values.end())),
      mean(perf::mean(values)),
      p50(median(values)),
      p95(quantile(values, 0.95)),
      p99(quantile(values, 0.99)),
      deviation(0) {
  for (const double value : values) deviation += (value - mean) * (value - mean);
  deviation = std::sqrt(deviation / static_cast<double>(values.size()));
}

}  // namespace seqpar::perf
