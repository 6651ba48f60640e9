#include "attn/block/cuda_arrange.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace seqpar::attn {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

// Measured on H200 with cuDNN 9.19.
constexpr double kCallUs = 9;      ///< a call of cuDNN and the start of the merge of its result
constexpr double kMergeBytes = 8;  ///< of an element of a call's result: written, read, merged with one other
constexpr double kTileUs = 1.9;    ///< 128 queries and 128 keys of 128 + 128 elements, on one SM
constexpr double kEntryUs = 1.0;   ///< start and end of a thread block
constexpr double kSms = 132;
constexpr double kBandFlopsPerUs = 1e7;
constexpr double kCopyBytesPerUs = 3e6;  ///< read and written
constexpr int64_t kTile = 128;

/// An arrangement must be faster than the given rectangles by this factor.
constexpr double kFaster = 0.7;
/// Fewer calls are not worth an arrangement, unless rectangles have few rows.
constexpr int64_t kLeastCalls = 5;
/// cuDNN computes whole tiles; this many times the scores are worth an arrangement.
constexpr double kMuchPadding = 2;
/// Parts with at most as many rows are cut at every border of their rectangles.
constexpr int64_t kLeafRows = 512;

/// Tiles of `count` rows or columns.
int64_t tilesOf(int64_t count) {
  return (count + kTile - 1) / kTile;
}

/// Columns that a row sees, on average.
int64_t columnsOfRow(const Rectangle& r) {
  return r.scores() / r.rows;
}

bool sameRows(const Rectangle& a, const Rectangle& b) {
  return a.row == b.row && a.rows == b.rows;
}

/// Joins full rectangles that are adjacent in their columns or, after that, in their rows.
std::vector<Rectangle> joined(std::vector<Rectangle> full) {
  std::sort(full.begin(), full.end(), [](const Rectangle& a, const Rectangle& b) {
    return std::tuple(a.row, a.rows, a.column) < std::tuple(b.row, b.rows, b.column);
  });
  std::vector<Rectangle> wide;
  for (const auto& r : full) {
    if (!wide.empty() && sameRows(wide.back(), r) && wide.back().column + wide.back().columns == r.column) {
      wide.back().columns += r.columns;
    } else {
      wide.push_back(r);
    }
  }
  std::sort(wide.begin(), wide.end(), [](const Rectangle& a, const Rectangle& b) {
    return std::tuple(a.column, a.columns, a.row) < std::tuple(b.column, b.columns, b.row);
  });
  std::vector<Rectangle> all;
  for (const auto& r : wide) {
    const bool below = !all.empty() && all.back().column == r.column && all.back().columns == r.columns &&
                       all.back().row + all.back().rows == r.row;
    if (below) {
      all.back().rows += r.rows;
    } else {
      all.push_back(r);
    }
  }
  return all;
}

/// Cuts full rectangles by rows; see halvedByRows().
class Halves {
 public:
  explicit Halves(int64_t leaf) : leaf_(leaf) {}

  std::vector<Rectangle> of(std::span<const Rectangle> full) {
    cut({full.begin(), full.end()});
    return joined(std::move(done_));
  }

 private:
  /// Cuts rectangles with any rows.
  void cut(std::vector<Rectangle> some) {
    std::sort(some.begin(), some.end(), [](const Rectangle& a, const Rectangle& b) { return a.row < b.row; });
    for (size_t begin = 0; begin < some.size();) {
      int64_t end = some[begin].row + some[begin].rows;
      size_t behind = begin + 1;
      for (; behind < some.size() && some[behind].row < end; ++behind) {
        end = std::max(end, some[behind].row + some[behind].rows);
      }
      part({some.begin() + static_cast<std::ptrdiff_t>(begin), some.begin() + static_cast<std::ptrdiff_t>(behind)},
           some[begin].row, end);
      begin = behind;
    }
  }

  /// Cuts rectangles within the rows from `begin` to `end`, which they connect.
  void part(std::vector<Rectangle> some, int64_t begin, int64_t end) {
    const auto whole = [&](const Rectangle& r) { return r.row == begin && r.rows == end - begin; };
    int64_t columns = 0;
    for (const auto& r : some) columns += whole(r) ? r.columns : 0;
    if (columns >= kTile) {
      std::copy_if(some.begin(), some.end(), std::back_inserter(done_), whole);
      std::erase_if(some, whole);
      if (separate(some)) return cut(std::move(some));
    }
    std::vector<int64_t> borders;
    for (const auto& r : some) {
      borders.push_back(r.row);
      borders.push_back(r.row + r.rows);
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    if (end - begin <= leaf_ || borders.size() <= 2) {
      for (size_t i = 0; i + 1 < borders.size(); ++i) {
        for (const auto& r : within(some, borders[i], borders[i + 1])) done_.push_back(r);
      }
      return;
    }
    const int64_t middle = begin + (end - begin) / 2;
    auto at = std::lower_bound(borders.begin() + 1, borders.end() - 2, middle);
    if (at - borders.begin() > 1 && middle - *(at - 1) < *at - middle) --at;
    cut(within(some, begin, *at));
    cut(within(some, *at, end));
  }

  /// Whether the rectangles, sorted by their first rows, are none or in several groups without common rows.
  static bool separate(std::span<const Rectangle> some) {
    int64_t end = some.empty() ? 0 : some.front().row;
    for (const auto& r : some) {
      if (r.row >= end && r.row > some.front().row) return true;
      end = std::max(end, r.row + r.rows);
    }
    return some.empty();
  }

  static std::vector<Rectangle> within(std::span<const Rectangle> some, int64_t begin, int64_t end) {
    std::vector<Rectangle> clipped;
    for (const auto& r : some) {
      const int64_t first = std::max(begin, r.row), behind = std::min(end, r.row + r.rows);
      if (first < behind) clipped.push_back({first, behind - first, r.column, r.columns});
    }
    return joined(std::move(clipped));
  }

  int64_t leaf_;
  std::vector<Rectangle> done_;
};

/// A band as the rows that see all of its columns, if these are most of its rows, and the rest.
void splitBand(const Rectangle& r, std::vector<Rectangle>& full, std::vector<Rectangle>& bands) {
  const int64_t above = r.upper == kHighest ? 0 : std::clamp<int64_t>(r.columns - 1 - r.upper, 0, r.rows);
  const int64_t below = r.lower == kLowest ? r.rows : std::clamp<int64_t>(1 - r.lower, 0, r.rows);
  if (below - above <= std::max(above, r.rows - below)) {
    bands.push_back(r);
    return;
  }
  full.push_back({r.row + above, below - above, r.column, r.columns});
  Rectangle top{r.row, above, r.column, r.columns, kLowest, r.upper};
  if (trim(top)) bands.push_back(top);
  Rectangle bottom{r.row + below, r.rows - below, r.column, r.columns, kLowest, kHighest};
  if (r.lower != kLowest) bottom.lower = r.lower + below;
  if (trim(bottom)) bands.push_back(bottom);
}

/// Columns that stay next to each other.
struct Atom {
  int64_t column = 0, columns = 0, firstRow = kHighest, lastRow = kLowest;
};

/// All columns of the rectangles, divided at those borders of rectangles that no band crosses.
std::vector<Atom> atomsOf(std::span<const Rectangle> rectangles) {
  std::vector<std::pair<int64_t, int>> events;  // column; +1: begins, -1: ends
  std::map<int64_t, int> bands;                 // change of the number of bands that contain a border
  for (const auto& r : rectangles) {
    events.emplace_back(r.column, 1);
    events.emplace_back(r.column + r.columns, -1);
    if (r.full()) continue;
    ++bands[r.column + 1];
    --bands[r.column + r.columns];
  }
  std::sort(events.begin(), events.end());
  std::vector<Atom> atoms;
  int open = 0, inside = 0;
  auto change = bands.begin();
  int64_t begin = 0;
  for (size_t i = 0; i < events.size();) {
    const int64_t column = events[i].first;
    for (; change != bands.end() && change->first <= column; ++change) inside += change->second;
    const int before = open;
    for (; i < events.size() && events[i].first == column; ++i) open += events[i].second;
    if (inside > 0) continue;
    if (before > 0) atoms.push_back({begin, column - begin});
    begin = column;
  }
  return atoms;
}

/// Joins bands with the same last row if their diagonals continue each other.
std::vector<Rectangle> joinedDiagonals(std::vector<Rectangle> bands) {
  std::sort(bands.begin(), bands.end(), [](const Rectangle& a, const Rectangle& b) { return a.column < b.column; });
  std::vector<Rectangle> all;
  for (const auto& r : bands) {
    if (!all.empty()) {
      auto& left = all.back();
      const bool causal = left.lower == kLowest && r.lower == kLowest && left.upper != kHighest && r.upper == 0;
      if (causal && left.column + left.columns == r.column && left.row + left.rows == r.row + r.rows &&
          left.upper == left.columns - (r.row - left.row)) {
        left.columns += r.columns;
        continue;
      }
    }
    all.push_back(r);
  }
  return all;
}

/// Whether cuDNN computes many more scores than are visible.
bool padded(std::span<const Rectangle> rectangles) {
  double scores = 0, computed = 0;
  for (const auto& r : rectangles) {
    scores += static_cast<double>(r.scores());
    computed += static_cast<double>(tilesOf(r.rows) * kTile * columnsOfRow(r));
  }
  return computed > kMuchPadding * scores;
}

/// The largest number of rectangles with a common row.
int64_t mostOfARow(std::span<const Rectangle> rectangles) {
  std::vector<std::pair<int64_t, int>> events;
  for (const auto& r : rectangles) {
    events.emplace_back(r.row, 1);
    events.emplace_back(r.row + r.rows, -1);
  }
  std::sort(events.begin(), events.end());
  int64_t open = 0, most = 0;
  for (const auto& [row, change] : events) most = std::max(most, open += change);
  return most;
}

}  // namespace

double forwardUs(std::span<const BlockStep> steps, const ArrangeShape& shape) {
  const auto heads = static_cast<double>(shape.heads);
  const double dims = static_cast<double>(shape.headDim + shape.valueDim);
  double us = kCallUs * static_cast<double>(steps.size());
  for (const auto& step : steps) {
    TokenRange rows;
    for (const auto& r : step.rectangles) rows = rows.with({r.row, r.rows});
    us += static_cast<double>(rows.count * shape.valueDim) * heads * kMergeBytes / kCopyBytesPerUs;
    for (const auto& r : step.rectangles) {
      if (step.kind == BlockStep::Kind::Bands) {
        us += static_cast<double>(r.scores()) * heads * 2 * dims / kBandFlopsPerUs;
        continue;
      }
      const auto tiles = static_cast<double>(tilesOf(r.rows)), columns = static_cast<double>(tilesOf(columnsOfRow(r)));
      us += heads * tiles * (kEntryUs + columns * kTileUs * dims / (2 * kTile)) / kSms;
    }
  }
  return us;
}

std::vector<Rectangle> halvedByRows(std::span<const Rectangle> full, int64_t leaf) {
  return Halves(leaf).of(full);
}

Arrangement byFirstRow(std::span<const Rectangle> rectangles) {
  auto atoms = atomsOf(rectangles);
  const auto atomAt = [&](int64_t column) {
    const auto after = std::upper_bound(atoms.begin(), atoms.end(), column,
                                        [](int64_t value, const Atom& atom) { return value < atom.column; });
    return static_cast<size_t>(after - atoms.begin()) - 1;
  };
  const auto eachAtom = [&](const Rectangle& r, auto&& visit) {
    for (size_t i = atomAt(r.column); i < atoms.size() && atoms[i].column < r.column + r.columns; ++i) visit(i);
  };
  for (const auto& r : rectangles) {
    eachAtom(r, [&](size_t i) {
      atoms[i].firstRow = std::min(atoms[i].firstRow, r.row);
      atoms[i].lastRow = std::max(atoms[i].lastRow, r.row + r.rows);
    });
  }
  std::vector<size_t> order(atoms.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(atoms[a].firstRow, atoms[a].lastRow, a) < std::tuple(atoms[b].firstRow, atoms[b].lastRow, b);
  });
  Arrangement made;
  std::vector<int64_t> shift(atoms.size());
  int64_t column = 0;
  for (const size_t i : order) {
    const auto& atom = atoms[i];
    shift[i] = column - atom.column;
    column += atom.columns;
    auto& runs = made.order;
    if (!runs.empty() && runs.back().from + runs.back().count == atom.column) {
      runs.back().count += atom.columns;
    } else {
      runs.push_back({atom.column, atom.columns});
    }
  }
  std::vector<Rectangle> full, bands;
  for (const auto& r : rectangles) {
    if (!r.full()) {
      bands.push_back(r);
      bands.back().column += shift[atomAt(r.column)];
      continue;
    }
    eachAtom(r, [&](size_t i) {
      const int64_t first = std::max(r.column, atoms[i].column),
                    behind = std::min(r.column + r.columns, atoms[i].column + atoms[i].columns);
      full.push_back({r.row, r.rows, first + shift[i], behind - first});
    });
  }
  made.rectangles = joined(std::move(full));
  for (const auto& r : joinedDiagonals(std::move(bands))) made.rectangles.push_back(r);
  return made;
}

Arrangement arrangeForward(std::span<const Rectangle> rectangles, const BlockLimits& limits,
                           const ArrangeShape& shape) {
  Arrangement given{{}, {rectangles.begin(), rectangles.end()}, 0};
  const int64_t calls = limits.cudnn && limits.batch == 1 ? mostOfARow(rectangles) : 0;
  // The assignment of many rectangles with common rows takes a time that is quadratic in their number.
  constexpr int64_t kFew = 64;
  if (calls <= kFew) {
    given.rectangles = forForward(rectangles, limits);
    if (calls == 0 || (calls < kLeastCalls && !padded(given.rectangles))) return given;
  }
  given.us = calls <= kFew ? forwardUs(stepsOf(given.rectangles, limits), shape) : kCallUs * static_cast<double>(calls);
  Arrangement best = given;
  best.us *= kFaster;
  const auto consider = [&](std::vector<ColumnRun> order, std::span<const Rectangle> some, bool halved) {
    std::vector<Rectangle> full, bands;
    for (const auto& r : some) {
      if (r.full()) {
        full.push_back(r);
      } else if (halved) {
        splitBand(r, full, bands);
      } else {
        bands.push_back(r);
      }
    }
    auto all = halved ? halvedByRows(full, kLeafRows) : full;
    all.insert(all.end(), bands.begin(), bands.end());
    // In this order the assignment to calls takes as many calls as there are rectangles with a common row.
    std::sort(all.begin(), all.end(), [](const Rectangle& a, const Rectangle& b) { return a.row < b.row; });
    if (mostOfARow(all) > std::max(calls, kFew)) return;
    if (!halved) all = forForward(all, limits);
    double copied = 0;
    for (const auto& run : order) copied += static_cast<double>(run.count);
    const double us =
        forwardUs(stepsOf(all, limits), shape) + (order.empty() ? 0 : kCallUs) +
        copied * static_cast<double>(shape.kvHeads * (shape.headDim + shape.valueDim)) * 4 / kCopyBytesPerUs;
    if (us < best.us) best = {std::move(order), std::move(all), us};
  };
  consider({}, rectangles, true);
  const auto sorted = byFirstRow(rectangles);
  if (sorted.order.size() > 1) {
    consider(sorted.order, sorted.rectangles, false);
    consider(sorted.order, sorted.rectangles, true);
  }
  return best;
}

}  // namespace seqpar::attn
