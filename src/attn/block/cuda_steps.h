// How a GPU goes about a list of rectangles: which cuDNN computes, one by one or many in a call, and which the band
// kernels do. Pure data.
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
    Bands    ///< our own kernels, any rectangles
  };
  Kind kind;
  std::vector<Rectangle> rectangles;  ///< no two share a row or a column
  // cuDNN: query i sees key j if i' - left < j <= i' + right, i' = i, or, bottomRight, i + columns - rows
  bool bottomRight = false;
  int64_t left = -1, right = -1;  ///< -1: unbounded
};

/// What cuDNN can be given.
struct BlockLimits {
  bool cudnn = false;  ///< at all
  int64_t batch = 1;
  /// A rectangle with fewer scores is not worth a plan of cuDNN, which takes a second to build.
  int64_t leastScores = int64_t{128} * 128;
  /// From so many rectangles on those with the same mask become one call.
  size_t leastRagged = 5;
};

std::vector<BlockStep> stepsOf(std::span<const Rectangle> rectangles, const BlockLimits& limits);

}  // namespace seqpar::attn
