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

/// Whether a mask, applied to a rectangle, shows what its band shows.
bool shows(const Mask& mask, const Rectangle& r) {
  if (mask.bottomRight && r.columns < r.rows) return false;
  const int64_t shift = mask.bottomRight ? r.columns - r.rows : 0;
  const int64_t upper = mask.right < 0 ? r.columns - 1 : std::min(mask.right + shift, r.columns - 1);
  const int64_t lower = mask.left < 0 ? 1 - r.rows : std::max(1 - mask.left + shift, 1 - r.rows);
  return upper == std::min(r.upper, r.columns - 1) && lower == std::max(r.lower, 1 - r.rows);
}

using ByMask = std::map<Mask, std::vector<Rectangle>>;

/// Moves rectangles with one mask to another mask that shows the same of all of them: whole documents to that of the
/// end of a document, short ones to a window. One ragged call then computes both.
void join(ByMask& groups) {
  for (auto group = groups.begin(); group != groups.end();) {
    const auto into = std::find_if(groups.begin(), groups.end(), [&](const auto& other) {
      return other.first != group->first && std::all_of(group->second.begin(), group->second.end(),
                                                        [&](const Rectangle& r) { return shows(other.first, r); });
    });
    if (into == groups.end()) {
      ++group;
      continue;
    }
    into->second.insert(into->second.end(), group->second.begin(), group->second.end());
    group = groups.erase(group);
  }
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
  // A call's thread blocks start in this order, and its end waits for the last ones: these have the least work.
  for (auto& layer : layers) {
    std::stable_sort(layer.step.rectangles.begin(), layer.step.rectangles.end(),
                     [&](const Rectangle& a, const Rectangle& b) {
                       return sharedColumns ? a.columns > b.columns : a.rows > b.rows;
                     });
  }
  for (auto& layer : layers) steps.push_back(std::move(layer.step));
  return steps;
}

/// Whether a ragged step is one rectangle that is worth a plan of its own.
bool isDense(const BlockStep& step, const BlockLimits& limits) {
  if (step.kind != BlockStep::Kind::Ragged || step.rectangles.size() > 1) return false;
  const auto& r = step.rectangles.front();
  return r.scores() >= limits.leastDense && r.rows % kDenseTokens == 0 && r.columns % kDenseTokens == 0;
}

/// Joins intervals of rows, which do not overlap, if they are adjacent.
std::vector<TokenRange> joinedRows(std::vector<TokenRange> rows) {
  std::sort(rows.begin(), rows.end(), [](const TokenRange& a, const TokenRange& b) { return a.first < b.first; });
  std::vector<TokenRange> joined;
  for (const auto& range : rows) {
    if (!joined.empty() && joined.back().end() == range.first) {
      joined.back().count += range.count;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

/// The full rectangles, cut at every column where one of them starts or ends, and joined where the same rows see the
/// columns.
std::vector<Rectangle> cutAtColumns(std::span<const Rectangle> full) {
  std::vector<int64_t> borders;
  for (const auto& r : full) {
    borders.push_back(r.column);
    borders.push_back(r.column + r.columns);
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::vector<Rectangle> cut, open;  // open: those that end at the current column
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    std::vector<TokenRange> rows;
    for (const auto& r : full) {
      if (r.column <= borders[i] && borders[i] < r.column + r.columns) rows.push_back({r.row, r.rows});
    }
    rows = joinedRows(std::move(rows));
    const bool same =
        std::equal(rows.begin(), rows.end(), open.begin(), open.end(),
                   [](const TokenRange& a, const Rectangle& b) { return a.first == b.row && a.count == b.rows; });
    const int64_t columns = borders[i + 1] - borders[i];
    if (same) {
      for (auto& r : open) r.columns += columns;
      continue;
    }
    cut.insert(cut.end(), open.begin(), open.end());
    open.clear();
    for (const auto& range : rows) open.push_back({range.first, range.count, borders[i], columns});
  }
  cut.insert(cut.end(), open.begin(), open.end());
  return cut;
}

}  // namespace

std::vector<Rectangle> forForward(std::span<const Rectangle> rectangles, const BlockLimits& limits) {
  auto split = splitDiagonals(rectangles, kLeastSplitRows);
  if (!limits.changing || stepsOf(split, limits).size() <= stepsOf(rectangles, limits).size()) return split;
  return {rectangles.begin(), rectangles.end()};
}

std::vector<Rectangle> forBackward(std::span<const Rectangle> rectangles) {
  constexpr size_t kMost = 1024;  // the time is quadratic
  auto all = splitDiagonals(rectangles, kLeastSplitRows);
  std::vector<Rectangle> full, bands;
  for (const auto& r : all) (r.full() ? full : bands).push_back(r);
  if (full.size() < 2 || full.size() > kMost) return all;
  auto cut = cutAtColumns(full);
  if (cut.size() > full.size()) return all;
  cut.insert(cut.end(), bands.begin(), bands.end());
  return columnsDisjoint(cut) ? cut : all;
}

RaggedSizes roundedUp(const RaggedSizes& sizes) {
  return {powerOfTwo(kLeastEntries, sizes.count), powerOfTwo(kLeastLength, sizes.rows),
          powerOfTwo(kLeastLength, sizes.columns), powerOfTwo(kLeastLength, sizes.allRows),
          powerOfTwo(kLeastLength, sizes.allColumns)};
}

std::vector<BlockStep> stepsOf(std::span<const Rectangle> rectangles, const BlockLimits& limits) {
  std::vector<Rectangle> bands;
  ByMask byMask;
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
  if (ragged && limits.join) join(byMask);
  std::vector<BlockStep> steps;
  const auto append = [&](std::vector<BlockStep> more) {
    for (auto& step : more) steps.push_back(std::move(step));
  };
  for (const auto& [mask, same] : byMask) {
    if (ragged && (limits.changing || same.size() > 1)) {
      append(layersOf(same, BlockStep::Kind::Ragged, mask, limits.sharedColumns));
      for (auto& step : steps) {
        if (isDense(step, limits)) step.kind = BlockStep::Kind::Single;
      }
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
