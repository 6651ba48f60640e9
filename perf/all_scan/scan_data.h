// All-Scan problems with exactly known results.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "seqpar/seqpar.h"
#include "shape.h"

namespace seqpar::perf {

/// The results x_1, x_2, ... are chosen first, as small integers, and the states follow: S_p = x_(p+1) - A_p x_p. The
/// factors of A are powers of two such that every product of neighboring A has entries 0, 1/2, 1 and 2 only. All
/// intermediate results of any algorithm then fit into five binary digits, and the result must be exact in every type.
class ScanData {
 public:
  /// The part of the rank at `position`; x_0 = 0.
  ScanData(seqparScanOp_t op, seqparDirection_t direction, Shape shape, int position);

  const std::vector<float>& state() const { return state_; }
  /// In seqparAllScan()'s layout; empty for SUM.
  const std::vector<float>& transition() const { return transition_; }
  const std::vector<float>& prefix() const { return prefix_; }
  const std::vector<float>& total() const { return total_; }

 private:
  void makeDiagonal(seqparScanOp_t op, size_t position);
  void makeMatrix(seqparDirection_t direction, size_t position);

  Shape shape_;
  std::vector<float> state_, transition_, prefix_, total_;
};

}  // namespace seqpar::perf
