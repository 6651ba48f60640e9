// The rectangles of a forward pass over many small blocks of keys, such as the pages of a KV cache, as few calls of
// cuDNN: keys in another order, and rectangles by rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/block/cuda_steps.h"

namespace seqpar::attn {

/// Columns `from` to `from` + `count` - 1 of a tensor.
struct ColumnRun {
  int64_t from = 0, count = 0;

  bool operator==(const ColumnRun&) const = default;
};

struct Arrangement {
  /// The columns of `rectangles` are those of the runs, one after the other, in memory to which they are copied; empty:
  /// the given columns.
  std::vector<ColumnRun> order;
  std::vector<Rectangle> rectangles;
  double us = 0;  ///< estimate
};

/// Sizes for estimates of times.
struct ArrangeShape {
  int64_t heads = 1, kvHeads = 1, headDim = 128, valueDim = 128;
};

/// The estimated time of the steps in a forward pass.
double forwardUs(std::span<const BlockStep> steps, const ArrangeShape& shape);

/// The rectangles of a forward pass: those of forForward(), unless another arrangement is estimated to take much less
/// time. In a layout of pages each page of keys has rectangles of its own with the same queries, and a call computes
/// one of them; arranged, a request is one rectangle and, near its diagonal, one call per halving of the rows.
Arrangement arrangeForward(std::span<const Rectangle> rectangles, const BlockLimits& limits, const ArrangeShape& shape);

/// Disjoint full rectangles as other disjoint full rectangles with the same scores: rows are halved until all remaining
/// rectangles see whole rows of a part or the part has at most `leaf` rows.
std::vector<Rectangle> halvedByRows(std::span<const Rectangle> full, int64_t leaf);

/// The rectangles with columns in the order of the first row, then of the last row, that sees them. Rectangles that
/// become adjacent are joined.
Arrangement byFirstRow(std::span<const Rectangle> rectangles);

}  // namespace seqpar::attn
