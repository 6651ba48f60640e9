// The terms of a state: S = sum over s of row_s value_s^T, of the last tokens. Kernels of the delta rule compute a
// chunk's terms first and add them up; they cancel where beta is near 2 and keys are alike, so the magnitudes of sums
// say nothing about the rounding errors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <vector>

namespace seqpar::test {

class Terms {
 public:
  /// Most tokens of a kernel's chunk.
  static constexpr size_t kChunk = 64;

  /// `perToken`: terms that each token adds.
  Terms(size_t rows, size_t columns, size_t perToken) : rows_(rows), columns_(columns), most_(perToken * kChunk) {}

  void add(const double* row, const double* value) {
    if (terms_.size() == most_) terms_.pop_front();
    terms_.push_back({{row, row + rows_}, {value, value + columns_}});
  }
  /// The state's rows times the decays; a decay of 0 discards its row.
  void decay(const double* decays) {
    for (auto& term : terms_) {
      for (size_t i = 0; i < rows_; ++i) term.row[i] *= decays[i];
    }
  }
  void clear() { terms_.clear(); }

  /// Sums of the magnitudes of the terms of probe S [columns] and of S probe [rows].
  std::vector<double> ofColumns(const double* probe) const { return sums(&Term::row, probe, &Term::value, columns_); }
  std::vector<double> ofRows(const double* probe) const { return sums(&Term::value, probe, &Term::row, rows_); }
  /// At least the largest sum of the magnitudes of an element's terms.
  double mostOfState() const {
    std::vector<double> ofRow(rows_);
    for (const auto& term : terms_) {
      double value = 0;
      for (const double x : term.value) value = std::max(value, std::abs(x));
      for (size_t i = 0; i < rows_; ++i) ofRow[i] += std::abs(term.row[i]) * value;
    }
    return *std::max_element(ofRow.begin(), ofRow.end());
  }

 private:
  struct Term {
    std::vector<double> row, value;
  };
  /// The magnitude of a score, or the root of the sum of its terms' squares if these cancel: roundings of the terms
  /// are independent.
  static double sizeOfScore(const double* x, const std::vector<double>& y) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double term = x[i] * y[i];
      sum += term;
      squares += term * term;
    }
    return std::max(std::abs(sum), std::sqrt(squares));
  }

  using Side = std::vector<double> Term::*;
  std::vector<double> sums(Side probed, const double* probe, Side kept, size_t count) const {
    std::vector<double> sums(count);
    for (const auto& term : terms_) {
      const double score = sizeOfScore(probe, term.*probed);
      for (size_t i = 0; i < count; ++i) sums[i] += score * std::abs((term.*kept)[i]);
    }
    return sums;
  }

  size_t rows_, columns_, most_;
  std::deque<Term> terms_;
};

}  // namespace seqpar::test
