// The number of visible scores of any interval of queries.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/block/slices.h"

namespace seqpar::attn {

__extension__ using Area = __int128;  ///< a number of scores: up to 2^96 for 2^48 tokens

/// Prefix sums of the scores of rows. The number of scores of a row is piecewise linear in the row, so the sums are
/// quadratic between O(slices) rows.
class RowAreas {
 public:
  explicit RowAreas(const SliceMask& mask);
  /// Visible scores of the rows before `row`.
  Area before(int64_t row) const;

 private:
  struct Segment {
    int64_t row;           ///< the first
    int64_t count, slope;  ///< scores of that row, and the difference from row to row
    Area before;           ///< scores of earlier rows
  };
  static Area sum(const Segment& segment, int64_t rows);

  std::vector<Segment> segments_;
};

}  // namespace seqpar::attn
