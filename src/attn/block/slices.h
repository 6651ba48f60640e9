// A mask as slices: bands of visible scores in positions of the whole sequence, and indices that find them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "attn/block/rectangles.h"

namespace seqpar::attn {

/// Intervals in the order of their first points; finds those that intersect a given interval in time log(n) each.
class IntervalTree {
 public:
  /// `begins` ascends. No interval is in the tree.
  explicit IntervalTree(std::vector<int64_t> begins);

  /// Adds interval `index`, up to, not including, `end`.
  void add(size_t index, int64_t end) { set(index, end); }
  void remove(size_t index) { set(index, kAbsent); }

  /// Calls visit(index), ascending, for the intervals in the tree that intersect [begin, end).
  template <typename Visit>
  void each(int64_t begin, int64_t end, Visit&& visit) const {
    const auto before = std::lower_bound(begins_.begin(), begins_.end(), end) - begins_.begin();
    if (before > 0) descend(1, 0, leaves_, static_cast<size_t>(before), begin, visit);
  }

 private:
  static constexpr int64_t kAbsent = std::numeric_limits<int64_t>::min();

  void set(size_t index, int64_t end);

  template <typename Visit>
  void descend(size_t node, size_t first, size_t count, size_t before, int64_t begin, Visit& visit) const {
    if (first >= before || ends_[node] <= begin) return;
    if (count == 1) {
      visit(first);
      return;
    }
    descend(2 * node, first, count / 2, before, begin, visit);
    descend(2 * node + 1, first + count / 2, count / 2, before, begin, visit);
  }

  std::vector<int64_t> begins_;
  size_t leaves_ = 1;          ///< a power of two
  std::vector<int64_t> ends_;  ///< [2 * leaves]: the largest end below each node; the root is 1
};

/// All visible scores of a problem as disjoint bands.
class SliceMask {
 public:
  /// Disjoint slices in positions, each with a visible score in every row and column.
  explicit SliceMask(std::vector<Rectangle> slices);

  /// Sorted by row, then by column.
  std::span<const Rectangle> slices() const { return slices_; }
  /// Calls visit(slice) for the slices with rows in [row, end).
  template <typename Visit>
  void each(int64_t row, int64_t end, Visit&& visit) const {
    byRow_.each(row, end, [&](size_t index) { visit(slices_[index]); });
  }

 private:
  std::vector<Rectangle> slices_;
  IntervalTree byRow_;
};

/// The index of a slice and of an earlier one that have a score in common, and the score.
struct SharedScore {
  size_t first = 0, second = 0;
  int64_t row = 0, column = 0;
};

enum class Disjointness { Disjoint, Shared, TooManyPairs };

/// Whether no two slices have a score in common. Time n log(n), and constant time for each pair of slices with common
/// rows and columns; gives up after 64 n such pairs. `shared` is set for Shared. The slices are as SliceMask's.
Disjointness disjointness(std::span<const Rectangle> slices, SharedScore& shared);

}  // namespace seqpar::attn
