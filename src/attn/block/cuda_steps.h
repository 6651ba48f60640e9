// The assignment of a list of rectangles to cuDNN, one or several per call, and to the band kernels, as data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/block/rectangles.h"

namespace seqpar::attn {

struct BlockStep {
  enum class Kind {
    Single,  ///< cuDNN, one rectangle
    Ragged,  ///< cuDNN, rectangles with the same mask in one call
    Bands    ///< built-in kernels, any rectangles
  };
  Kind kind = Kind::Single;
  std::vector<Rectangle> rectangles;  ///< no two share a row, or, without BlockLimits::sharedColumns, a column
  // cuDNN: query i sees key j if i' - left < j <= i' + right, i' = i, or, bottomRight, i + columns - rows
  bool bottomRight = false;
  int64_t left = -1, right = -1;  ///< -1: unbounded
};

/// Limits for the use of cuDNN.
struct BlockLimits {
  bool cudnn = false;  ///< cuDNN is available
  int64_t batch = 1;
  /// Rectangles with fewer scores do not use cuDNN, because building a plan takes a second.
  int64_t leastScores = int64_t{128} * 128;
  /// From this number on, rectangles with the same mask are one call.
  size_t leastRagged = 5;
  /// Rectangles of a call may have common columns: a forward pass, which only reads keys.
  bool sharedColumns = false;
  /// Rectangles differ from plan to plan: cuDNN calls are ragged, because only ragged plans serve many rectangles,
  /// except those of one rectangle with so many scores and multiples of kDenseTokens as sizes.
  bool changing = false;
  int64_t leastDense = INT64_MAX;
  /// Rectangles with several masks are one ragged call if one of the masks shows the same of them: in a forward pass.
  /// cuDNN's backward pass computes all scores of a rectangle with a diagonal that starts right of its first column.
  bool join = false;
};

/// Rectangles of whole tiles have dense calls. Layouts that a solver made have such rectangles, documents do not.
inline constexpr int64_t kDenseTokens = 128;

/// From this number of rows, a band with a diagonal that starts right of its first column is split: cuDNN also computes
/// the scores above such a diagonal, which takes longer than a second call.
inline constexpr int64_t kLeastSplitRows = 1024;

/// The rectangles of a forward pass: with split diagonals, unless the whole ones take fewer calls.
std::vector<Rectangle> forForward(std::span<const Rectangle> rectangles, const BlockLimits& limits);

/// The rectangles of a backward pass: with split diagonals, and those without bands cut by columns, if they do not
/// become more and no two rectangles then have common columns. Then each key's gradients are the result of one call,
/// and sums of the queries' gradients, which are fewer numbers, remain. Otherwise the cuts leave short calls only.
std::vector<Rectangle> forBackward(std::span<const Rectangle> rectangles);

/// The sizes of the cuDNN plan that runs a ragged step.
struct RaggedSizes {
  int64_t count = 0, rows = 0, columns = 0;  ///< entries, and their longest lengths
  int64_t allRows = 0, allColumns = 0;       ///< lengths of the tensors

  bool operator==(const RaggedSizes&) const = default;
};

/// Powers of two, so that few plans run the steps of all packings. Entries beyond the step's are empty.
RaggedSizes roundedUp(const RaggedSizes& sizes);

std::vector<BlockStep> stepsOf(std::span<const Rectangle> rectangles, const BlockLimits& limits);

}  // namespace seqpar::attn
