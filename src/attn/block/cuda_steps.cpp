#include "attn/block/cuda_steps.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>

namespace seqpar::attn {
namespace {

/// The least sizes of plans. Longer tensors take workspace only, longer rectangles and more of them empty thread
/// blocks.
constexpr int64_t kLeastEntries = 8, kLeastLength = 512;

int64_t powerOfTwo(int64_t least, int64_t size) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(least, size))));
}

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

/// Intervals without overlap.
class Intervals {
 public:
  bool free(int64_t first, int64_t count) const {
    const auto next = ends_.lower_bound(first);
    if (next != ends_.end() && next->first < first + count) return false;
    return next == ends_.begin() || std::prev(next)->second <= first;
  }
  void add(int64_t first, int64_t count) { ends_[first] = first + count; }

 private:
  std::map<int64_t, int64_t> ends_;  ///< by the first number
};

/// Steps of one kind without overlap within a step.
std::vector<BlockStep> layersOf(std::span<const Rectangle> rectangles, BlockStep::Kind kind, const Mask& mask,
                                bool sharedColumns) {
  struct Layer {
    BlockStep step;
    Intervals rows, columns;
  };
  std::vector<Layer> layers;
  for (const auto& r : rectangles) {
    auto place = std::find_if(layers.begin(), layers.end(), [&](const Layer& layer) {
      return layer.rows.free(r.row, r.rows) && (sharedColumns || layer.columns.free(r.column, r.columns));
    });
    if (place == layers.end()) {
      layers.push_back({{kind, {}, mask.bottomRight, mask.left, mask.right}, {}, {}});
      place = layers.end() - 1;
    }
    place->step.rectangles.push_back(r);
    place->rows.add(r.row, r.rows);
    if (!sharedColumns) place->columns.add(r.column, r.columns);
  }
  std::vector<BlockStep> steps;
  steps.reserve(layers.size());
  for (auto& layer : layers) steps.push_back(std::move(layer.step));
  return steps;
}

/// Rectangles of consecutive rows that start at one column, each longer than the one above: the columns that only the
/// i-th and later ones have, in the rows of all these, are one rectangle.
void cutStairs(std::span<const Rectangle> stairs, std::vector<Rectangle>& out) {
  if (stairs.empty()) return;
  const int64_t end = stairs.back().row + stairs.back().rows;
  int64_t before = 0;  // columns
  for (const auto& r : stairs) {
    out.push_back({r.row, end - r.row, r.column + before, r.columns - before});
    before = r.columns;
  }
}

}  // namespace

std::vector<Rectangle> splitStairs(std::span<const Rectangle> rectangles) {
  std::vector<Rectangle> all, stairs;
  for (const auto& r : rectangles) {
    const bool follows = !stairs.empty() && r.full() && r.column == stairs.back().column &&
                         r.row == stairs.back().row + stairs.back().rows && r.columns > stairs.back().columns;
    if (!follows) {
      cutStairs(stairs, all);
      stairs.clear();
    }
    if (r.full()) {
      stairs.push_back(r);
    } else {
      all.push_back(r);
    }
  }
  cutStairs(stairs, all);
  return all;
}

RaggedSizes roundedUp(const RaggedSizes& sizes) {
  return {powerOfTwo(kLeastEntries, sizes.count), powerOfTwo(kLeastLength, sizes.rows),
          powerOfTwo(kLeastLength, sizes.columns), powerOfTwo(kLeastLength, sizes.allRows),
          powerOfTwo(kLeastLength, sizes.allColumns)};
}

std::vector<BlockStep> stepsOf(std::span<const Rectangle> rectangles, const BlockLimits& limits) {
  std::vector<Rectangle> bands;
  std::map<Mask, std::vector<Rectangle>> byMask;
  size_t large = 0;
  for (const auto& r : rectangles) large += r.scores() >= limits.leastScores ? 1 : 0;
  const bool ragged = limits.batch == 1 && (limits.changing || rectangles.size() >= limits.leastRagged) && large > 0;
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
    if (ragged && (limits.changing || same.size() > 1)) {
      append(layersOf(same, BlockStep::Kind::Ragged, mask, limits.sharedColumns));
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
  append(layersOf(bands, BlockStep::Kind::Bands, {}, limits.sharedColumns));
  return steps;
}

}  // namespace seqpar::attn
