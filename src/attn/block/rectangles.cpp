#include "attn/block/rectangles.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include "attn/block/slices.h"

namespace seqpar::attn {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

int64_t last(const TokenRun& run) {
  return run.position + (run.length - 1) * run.stride;
}

TokenRun part(const TokenRun& run, int64_t first, int64_t length) {
  return {run.local + first, run.position + first * run.stride, length, run.stride};
}

/// Whether `run` continues `before`.
bool continues(const TokenRun& before, const TokenRun& run) {
  return before.stride == run.stride && before.local + before.length == run.local &&
         last(before) + before.stride == run.position;
}

int64_t floorDivide(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}
int64_t ceilDivide(int64_t a, int64_t b) {
  return -floorDivide(-a, b);
}

/// A run within one of the packed sequences.
struct Segment {
  std::ptrdiff_t sequence;
  TokenRun run;
};

/// The runs cut at the starts of sequences, in the order of the sequences; without packing, one sequence.
std::vector<Segment> bySequence(std::span<const TokenRun> runs, std::span<const int64_t> cuSeqlens) {
  std::vector<Segment> segments;
  if (cuSeqlens.empty()) {
    for (const auto& run : runs) segments.push_back({0, run});
    return segments;
  }
  for (const auto& run : runs) {
    for (int64_t done = 0; done < run.length;) {
      const int64_t position = run.position + done * run.stride;
      const auto end = std::upper_bound(cuSeqlens.begin(), cuSeqlens.end(), position);
      if (end == cuSeqlens.begin() || end == cuSeqlens.end()) break;  // outside all sequences
      const int64_t count = std::min(run.length - done, ceilDivide(*end - position, run.stride));
      segments.push_back({end - cuSeqlens.begin(), part(run, done, count)});
      done += count;
    }
  }
  const auto earlier = [](const Segment& a, const Segment& b) { return a.sequence < b.sequence; };
  if (!std::is_sorted(segments.begin(), segments.end(), earlier))
    std::stable_sort(segments.begin(), segments.end(), earlier);
  return segments;
}

/// Collects rectangles and joins unbounded ones.
class Collector {
 public:
  void add(Rectangle r) {
    if (!trim(r)) return;
    if (!all_.empty() && r.full() && all_.back().full()) {
      auto& before = all_.back();
      if (before.row == r.row && before.rows == r.rows && before.column + before.columns == r.column) {
        before.columns += r.columns;
        return;
      }
    }
    all_.push_back(r);
    joinDiagonal();
  }

  const std::vector<Rectangle>& all() const { return all_; }

  /// All rectangles, with vertically adjacent ones joined.
  std::vector<Rectangle> take() {
    std::vector<Rectangle> joined;
    std::map<std::tuple<int64_t, int64_t, int64_t>, size_t> open;  // by columns and the row after the last
    for (const auto& r : all_) {
      if (!r.full()) {
        joined.push_back(r);
        continue;
      }
      const auto above = open.find({r.column, r.columns, r.row});
      size_t index = joined.size();
      if (above == open.end()) {
        joined.push_back(r);
      } else {
        index = above->second;
        joined[index].rows += r.rows;
        open.erase(above);
      }
      open[{r.column, r.columns, joined[index].row + joined[index].rows}] = index;
    }
    return joined;
  }

 private:
  /// A band that is bounded by its diagonal only: only its last row sees its last column.
  static bool causal(const Rectangle& r) {
    return r.lower == kLowest && r.upper != kHighest && r.upper >= 0 && r.columns == r.rows + r.upper;
  }

  /// Joins the last rectangle with an unbounded one to its left, and then with the band above if it continues that
  /// band's diagonal: the two runs of a zigzag shard form one triangle.
  void joinDiagonal() {
    if (!causal(all_.back())) return;
    if (all_.size() >= 2) {
      const auto& left = all_[all_.size() - 2];
      auto& r = all_.back();
      if (left.full() && left.row == r.row && left.rows == r.rows && left.column + left.columns == r.column) {
        r.column = left.column;
        r.columns += left.columns;
        r.upper += left.columns;
        all_.erase(all_.end() - 2);
      }
    }
    constexpr size_t kFew = 8;
    const Rectangle r = all_.back();
    for (size_t back = 1; back < std::min(all_.size(), kFew); ++back) {
      auto& above = all_[all_.size() - 1 - back];
      if (!causal(above) || above.row + above.rows != r.row || above.column != r.column ||
          r.upper != above.upper + above.rows) {
        continue;
      }
      above.rows += r.rows;
      above.columns = r.columns;
      all_.pop_back();
      return;
    }
  }

  std::vector<Rectangle> all_;
};

/// The query at position p sees the keys at p + lower to p + upper.
struct Offsets {
  int64_t lower = kLowest, upper = kHighest;
};

Offsets offsetsOf(const Visibility& v) {
  constexpr int64_t kFar = int64_t{1} << 50;  // beyond all positions; sums cannot overflow
  return {v.left == kUnbounded ? kLowest : v.shift - std::min(v.left, kFar),
          v.right == kUnbounded ? kHighest : v.shift + std::min(v.right, kFar)};
}

Offsets offsetsOf(const Rectangle& slice) {
  const int64_t shift = slice.column - slice.row;
  return {slice.lower == kLowest ? kLowest : shift + slice.lower,
          slice.upper == kHighest ? kHighest : shift + slice.upper};
}

void addPair(TokenRun q, TokenRun k, const Offsets& sees, Collector& out) {
  if (q.length == 0 || k.length == 0) return;
  const bool above = sees.upper != kHighest, below = sees.lower != kLowest;
  if ((above && k.position > last(q) + sees.upper) || (below && last(k) < q.position + sees.lower)) return;
  const bool free = (!above || last(k) <= q.position + sees.upper) && (!below || k.position >= last(q) + sees.lower);
  if (free) return out.add({q.local, q.length, k.local, k.length});
  if (q.length == 1) q.stride = k.stride;
  if (k.length == 1) k.stride = q.stride;
  if (q.stride != k.stride) {  // no band of slope 1: split until the pieces are unbounded or single tokens
    if (q.length >= k.length) {
      addPair(part(q, 0, q.length / 2), k, sees, out);
      addPair(part(q, q.length / 2, q.length - q.length / 2), k, sees, out);
    } else {
      addPair(q, part(k, 0, k.length / 2), sees, out);
      addPair(q, part(k, k.length / 2, k.length - k.length / 2), sees, out);
    }
    return;
  }
  Rectangle r{q.local, q.length, k.local, k.length};
  if (above) r.upper = floorDivide(q.position + sees.upper - k.position, q.stride);
  if (below) r.lower = ceilDivide(q.position + sees.lower - k.position, q.stride);
  if (r.lower > r.upper) return;  // the window is between two keys of every query
  out.add(r);
}

/// The tokens of the run at positions from `begin` up to, not including, `end`.
TokenRun clipped(const TokenRun& run, int64_t begin, int64_t end) {
  const int64_t first = std::clamp<int64_t>(ceilDivide(begin - run.position, run.stride), 0, run.length);
  const int64_t behind = std::clamp<int64_t>(ceilDivide(end - run.position, run.stride), first, run.length);
  return part(run, first, behind - first);
}

/// Adds the scores of the slices in the order of their rows and columns, which allows to join them.
void addSlices(std::span<const TokenRun> queries, std::span<const TokenRun> keys, const SliceMask& mask,
               Collector& out) {
  std::vector<TokenRun> byPosition;
  for (const auto& run : keys) {
    if (run.length > 0) byPosition.push_back(run);
  }
  std::sort(byPosition.begin(), byPosition.end(),
            [](const TokenRun& a, const TokenRun& b) { return a.position < b.position; });
  std::vector<int64_t> begins;
  begins.reserve(byPosition.size());
  for (const auto& run : byPosition) begins.push_back(run.position);
  IntervalTree index(std::move(begins));
  for (size_t i = 0; i < byPosition.size(); ++i) index.add(i, last(byPosition[i]) + 1);
  Collector parts;
  for (const auto& run : queries) {
    if (run.length == 0) continue;
    mask.each(run.position, last(run) + 1, [&](const Rectangle& slice) {
      const auto rows = clipped(run, slice.row, slice.row + slice.rows);
      if (rows.length == 0) return;
      index.each(slice.column, slice.column + slice.columns, [&](size_t key) {
        const auto columns = clipped(byPosition[key], slice.column, slice.column + slice.columns);
        addPair(rows, columns, offsetsOf(slice), parts);
      });
    });
  }
  auto all = parts.all();
  std::sort(all.begin(), all.end(), [](const Rectangle& a, const Rectangle& b) {
    return std::tuple(a.row, a.rows, a.column) < std::tuple(b.row, b.rows, b.column);
  });
  for (const auto& r : all) out.add(r);
}

}  // namespace

bool trim(Rectangle& r) {
  if (r.upper != kHighest) {
    const int64_t blind = std::max<int64_t>(0, -r.upper);
    if (blind >= r.rows) return false;
    r.row += blind;
    r.rows -= blind;
    r.upper += blind;
    if (r.lower != kLowest) r.lower += blind;
    r.columns = std::min(r.columns, r.rows + r.upper);
  }
  if (r.lower != kLowest) {
    if (r.lower >= r.columns) return false;
    r.rows = std::min(r.rows, r.columns - r.lower);
    const int64_t unseen = std::max<int64_t>(0, r.lower);
    r.column += unseen;
    r.columns -= unseen;
    r.lower -= unseen;
    if (r.upper != kHighest) {
      r.upper -= unseen;
      r.columns = std::min(r.columns, r.rows + r.upper);
    }
    if (r.rows - 1 + r.lower <= 0) r.lower = kLowest;
  }
  if (r.upper != kHighest && r.upper >= r.columns - 1) r.upper = kHighest;
  return r.rows > 0 && r.columns > 0;
}

TokenRange TokenRange::with(const TokenRange& other) const {
  if (other.count == 0) return *this;
  if (count == 0) return other;
  const int64_t begin = std::min(first, other.first);
  return {begin, std::max(end(), other.end()) - begin};
}

int64_t Rectangle::scores() const {
  if (full()) return rows * columns;
  // Row i sees the columns from max(0, i + lower) to min(columns, i + upper + 1) - 1.
  const auto before = [this](int64_t bound) {  // sum over i of clamp(i + bound, 0, columns)
    const int64_t rising = std::clamp<int64_t>(-bound, 0, rows),
                  full = std::clamp<int64_t>(columns - bound, rising, rows);
    const int64_t count = full - rising;
    return count * (rising + bound) + count * (count - 1) / 2 + (rows - full) * columns;
  };
  return (upper == kHighest ? rows * columns : before(upper + 1)) - (lower == kLowest ? 0 : before(lower));
}

std::vector<Rectangle> rectanglesOf(std::span<const TokenRun> queries, std::span<const TokenRun> keys,
                                    const Visibility& visibility) {
  Collector out;
  if (visibility.slices) {
    addSlices(queries, keys, *visibility.slices, out);
    return out.take();
  }
  const auto offsets = offsetsOf(visibility);
  const auto rows = bySequence(queries, visibility.cuSeqlens), columns = bySequence(keys, visibility.cuSeqlens);
  auto begin = columns.begin();
  for (const auto& q : rows) {
    while (begin != columns.end() && begin->sequence < q.sequence) ++begin;
    for (auto k = begin; k != columns.end() && k->sequence == q.sequence; ++k) addPair(q.run, k->run, offsets, out);
  }
  return out.take();
}

std::vector<Rectangle> ofRows(std::span<const Rectangle> rectangles, int64_t first, int64_t count) {
  Collector out;
  for (auto r : rectangles) {
    const int64_t above = std::max<int64_t>(0, first - r.row), end = std::min(r.rows, first + count - r.row);
    if (above >= end) continue;
    r.row += above;
    r.rows = end - above;
    if (r.lower != kLowest) r.lower += above;
    if (r.upper != kHighest) r.upper += above;
    out.add(r);
  }
  return out.all();
}

std::vector<Rectangle> splitDiagonals(std::span<const Rectangle> rectangles, int64_t leastRows) {
  std::vector<Rectangle> all;
  for (auto r : rectangles) {
    if (r.lower == kLowest && r.upper != kHighest && r.upper > 0 && r.rows >= leastRows) {
      all.push_back({r.row, r.rows, r.column, r.upper});
      r.column += r.upper;
      r.columns -= r.upper;
      r.upper = 0;
    }
    all.push_back(r);
  }
  return all;
}

std::vector<Rectangle> movedBy(std::span<const Rectangle> rectangles, int64_t row, int64_t column) {
  std::vector<Rectangle> moved(rectangles.begin(), rectangles.end());
  for (auto& r : moved) {
    r.row -= row;
    r.column -= column;
  }
  return moved;
}

int64_t rowBetween(std::span<const Rectangle> rectangles, int64_t least, int64_t preferred, int64_t most) {
  std::vector<Rectangle> byRow(rectangles.begin(), rectangles.end());
  std::sort(byRow.begin(), byRow.end(), [](const Rectangle& a, const Rectangle& b) { return a.row < b.row; });
  int64_t best = preferred, end = 0;
  bool found = false;
  const auto consider = [&](int64_t begin, int64_t behind) {
    if (begin > behind || begin > most || behind < least) return;
    const int64_t row = std::clamp(preferred, std::max(begin, least), std::min(behind, most));
    if (!found || std::abs(row - preferred) < std::abs(best - preferred)) best = row;
    found = true;
  };
  for (const auto& r : byRow) {
    consider(end, r.row);
    end = std::max(end, r.row + r.rows);
  }
  consider(end, std::max(end, most));
  return best;
}

bool columnsDisjoint(std::span<const Rectangle> rectangles) {
  std::vector<Rectangle> byColumn(rectangles.begin(), rectangles.end());
  std::sort(byColumn.begin(), byColumn.end(),
            [](const Rectangle& a, const Rectangle& b) { return a.column < b.column; });
  for (size_t i = 1; i < byColumn.size(); ++i) {
    if (byColumn[i].column < byColumn[i - 1].column + byColumn[i - 1].columns) return false;
  }
  return true;
}

int64_t scoresOf(std::span<const Rectangle> rectangles) {
  int64_t sum = 0;
  for (const auto& r : rectangles) sum += r.scores();
  return sum;
}

std::vector<TokenRun> joinRuns(std::span<const std::vector<TokenRun>> shards) {
  std::vector<TokenRun> joined;
  int64_t before = 0;
  for (const auto& shard : shards) {
    int64_t length = 0;
    for (auto run : shard) {
      length += run.length;
      run.local += before;
      if (!joined.empty() && continues(joined.back(), run)) {
        joined.back().length += run.length;
      } else {
        joined.push_back(run);
      }
    }
    before += length;
  }
  return joined;
}

}  // namespace seqpar::attn
