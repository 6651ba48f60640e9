#include "attn/problem/row_areas.h"

#include <algorithm>
#include <limits>

namespace seqpar::attn {
namespace {

/// A change of the number of scores of a row, and of its difference from row to row.
struct Change {
  int64_t row, count, slope;
};

/// Adds the line `count` + i * `slope` for the rows row + i, 0 <= i < rows.
void addLine(int64_t row, int64_t rows, int64_t count, int64_t slope, std::vector<Change>& out) {
  if (rows <= 0) return;
  out.push_back({row, count, slope});
  out.push_back({row + rows, -(count + rows * slope), -slope});
}

/// Adds `sign` * clamp(i + bound, 0, columns) for the rows of the slice.
void addClamped(const Rectangle& s, int64_t bound, int64_t sign, std::vector<Change>& out) {
  const int64_t rising = std::clamp<int64_t>(-bound, 0, s.rows);
  const int64_t full = std::clamp<int64_t>(s.columns - bound, rising, s.rows);
  addLine(s.row + rising, full - rising, sign * (rising + bound), sign, out);
  addLine(s.row + full, s.rows - full, sign * s.columns, 0, out);
}

}  // namespace

RowAreas::RowAreas(const SliceMask& mask) {
  std::vector<Change> changes;
  changes.reserve(mask.slices().size() * 6);
  for (const auto& s : mask.slices()) {
    if (s.upper == std::numeric_limits<int64_t>::max()) {
      addLine(s.row, s.rows, s.columns, 0, changes);
    } else {
      addClamped(s, s.upper + 1, 1, changes);
    }
    if (s.lower != std::numeric_limits<int64_t>::min()) addClamped(s, s.lower, -1, changes);
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.row < b.row; });
  segments_.push_back({0, 0, 0, 0});
  for (const auto& change : changes) {
    const auto last = segments_.back();
    const int64_t rows = change.row - last.row;
    if (rows > 0)
      segments_.push_back({change.row, last.count + rows * last.slope, last.slope, last.before + sum(last, rows)});
    segments_.back().count += change.count;
    segments_.back().slope += change.slope;
  }
}

Area RowAreas::sum(const Segment& segment, int64_t rows) {
  return Area{segment.count} * rows + Area{segment.slope} * rows * (rows - 1) / 2;
}

Area RowAreas::before(int64_t row) const {
  const auto after = std::upper_bound(segments_.begin(), segments_.end(), row,
                                      [](int64_t at, const Segment& segment) { return at < segment.row; });
  const auto& segment = *(after - 1);
  return segment.before + sum(segment, row - segment.row);
}

}  // namespace seqpar::attn
