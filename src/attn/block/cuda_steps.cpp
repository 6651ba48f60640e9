#include "attn/block/cuda_steps.h"

#include <algorithm>
#include <map>

namespace seqpar::attn {
namespace {

struct Mask {
  bool bottomRight = false;
  int64_t left = -1, right = -1;
  auto operator<=>(const Mask&) const = default;  // NOLINT(modernize-use-nullptr): generated
};

/// A rectangle's band as a cuDNN mask.
Mask maskOf(const Rectangle& r) {
  Mask mask;
  // A bound that excludes nothing is dropped.
  const bool right = r.upper<r.columns - 1, left = r.lower> 1 - r.rows;
  if (right) mask.right = r.upper;
  if (left) mask.left = 1 - r.lower;
  if (right && r.upper > 0 && r.upper == r.columns - r.rows) {
    mask.bottomRight = true;
    mask.right = 0;
    if (left) mask.left += r.upper;
  }
  return mask;
}

bool overlap(int64_t a, int64_t aLength, int64_t b, int64_t bLength) {
  return a < b + bLength && b < a + aLength;
}

/// Steps of one kind without overlap within a step.
std::vector<BlockStep> layersOf(std::span<const Rectangle> rectangles, BlockStep::Kind kind, const Mask& mask) {
  std::vector<BlockStep> layers;
  for (const auto& r : rectangles) {
    const auto fits = [&](const BlockStep& step) {
      return std::none_of(step.rectangles.rbegin(), step.rectangles.rend(), [&](const Rectangle& other) {
        return overlap(r.row, r.rows, other.row, other.rows) ||
               overlap(r.column, r.columns, other.column, other.columns);
      });
    };
    auto place = std::find_if(layers.begin(), layers.end(), fits);
    if (place == layers.end()) {
      layers.push_back({kind, {}, mask.bottomRight, mask.left, mask.right});
      place = layers.end() - 1;
    }
    place->rectangles.push_back(r);
  }
  return layers;
}

}  // namespace

std::vector<BlockStep> stepsOf(std::span<const Rectangle> rectangles, const BlockLimits& limits) {
  std::vector<Rectangle> bands;
  std::map<Mask, std::vector<Rectangle>> byMask;
  size_t large = 0;
  for (const auto& r : rectangles) large += r.scores() >= limits.leastScores ? 1 : 0;
  const bool ragged = limits.batch == 1 && rectangles.size() >= limits.leastRagged && large > 0;
  for (const auto& r : rectangles) {
    // In a ragged batch a small rectangle has no extra cost in cuDNN.
    const bool fits = limits.cudnn && r.rows > 1 && r.columns > 1 && (ragged || r.scores() >= limits.leastScores);
    if (fits) {
      byMask[maskOf(r)].push_back(r);
    } else {
      bands.push_back(r);
    }
  }
  std::vector<BlockStep> steps;
  const auto append = [&](std::vector<BlockStep> more) {
    for (auto& step : more) steps.push_back(std::move(step));
  };
  for (const auto& [mask, same] : byMask) {
    if (ragged && same.size() > 1) {
      append(layersOf(same, BlockStep::Kind::Ragged, mask));
      continue;
    }
    for (const auto& r : same) {
      if (r.scores() < limits.leastScores) {
        bands.push_back(r);
      } else {
        steps.push_back({BlockStep::Kind::Single, {r}, mask.bottomRight, mask.left, mask.right});
      }
    }
  }
  append(layersOf(bands, BlockStep::Kind::Bands, {}));
  return steps;
}

}  // namespace seqpar::attn
