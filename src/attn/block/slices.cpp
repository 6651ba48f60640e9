#include "attn/block/slices.h"

#include <numeric>
#include <queue>
#include <utility>

namespace seqpar::attn {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

std::vector<Rectangle> sorted(std::vector<Rectangle> slices) {
  std::sort(slices.begin(), slices.end(), [](const Rectangle& a, const Rectangle& b) {
    return std::pair(a.row, a.column) < std::pair(b.row, b.column);
  });
  return slices;
}

template <typename Begin>
std::vector<int64_t> beginsOf(std::span<const Rectangle> slices, Begin begin) {
  std::vector<int64_t> begins;
  begins.reserve(slices.size());
  for (const auto& slice : slices) begins.push_back(begin(slice));
  return begins;
}

/// Key position minus query position, at least and at most.
int64_t leastOffset(const Rectangle& s) {
  return s.lower == kLowest ? kLowest : s.column - s.row + s.lower;
}
int64_t mostOffset(const Rectangle& s) {
  return s.upper == kHighest ? kHighest : s.column - s.row + s.upper;
}

/// Whether the slices have a score in common, and which.
bool share(const Rectangle& a, const Rectangle& b, int64_t& row, int64_t& column) {
  const int64_t row0 = std::max(a.row, b.row), row1 = std::min(a.row + a.rows, b.row + b.rows);
  const int64_t column0 = std::max(a.column, b.column), column1 = std::min(a.column + a.columns, b.column + b.columns);
  if (row0 >= row1 || column0 >= column1) return false;
  const int64_t least = std::max({leastOffset(a), leastOffset(b), column0 - (row1 - 1)});
  const int64_t most = std::min({mostOffset(a), mostOffset(b), column1 - 1 - row0});
  if (least > most) return false;
  row = std::max(row0, column0 - least);
  column = row + least;
  return true;
}

}  // namespace

IntervalTree::IntervalTree(std::vector<int64_t> begins) : begins_(std::move(begins)) {
  while (leaves_ < begins_.size()) leaves_ *= 2;
  ends_.assign(2 * leaves_, kAbsent);
}

void IntervalTree::set(size_t index, int64_t end) {
  size_t node = leaves_ + index;
  ends_[node] = end;
  while (node > 1) {
    node /= 2;
    ends_[node] = std::max(ends_[2 * node], ends_[2 * node + 1]);
  }
}

SliceMask::SliceMask(std::vector<Rectangle> slices)
    : slices_(sorted(std::move(slices))), byRow_(beginsOf(slices_, [](const Rectangle& s) { return s.row; })) {
  for (size_t i = 0; i < slices_.size(); ++i) byRow_.add(i, slices_[i].row + slices_[i].rows);
}

Disjointness disjointness(std::span<const Rectangle> slices, SharedScore& shared) {
  const size_t count = slices.size();
  std::vector<size_t> byRow(count), byColumn(count), place(count);
  std::iota(byRow.begin(), byRow.end(), size_t{0});
  byColumn = byRow;
  std::sort(byRow.begin(), byRow.end(), [&](size_t a, size_t b) { return slices[a].row < slices[b].row; });
  std::sort(byColumn.begin(), byColumn.end(), [&](size_t a, size_t b) { return slices[a].column < slices[b].column; });
  std::vector<int64_t> begins;
  begins.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    place[byColumn[i]] = i;
    begins.push_back(slices[byColumn[i]].column);
  }
  // A sweep over the rows: the tree has the columns of the slices with the current row.
  IntervalTree open(std::move(begins));
  using End = std::pair<int64_t, size_t>;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  size_t pairs = 0;
  bool found = false;
  for (const size_t i : byRow) {
    const auto& slice = slices[i];
    while (!ends.empty() && ends.top().first <= slice.row) {
      open.remove(place[ends.top().second]);
      ends.pop();
    }
    open.each(slice.column, slice.column + slice.columns, [&](size_t other) {
      ++pairs;
      if (found) return;
      shared.first = std::min(i, byColumn[other]);
      shared.second = std::max(i, byColumn[other]);
      found = share(slice, slices[byColumn[other]], shared.row, shared.column);
    });
    if (found) return Disjointness::Shared;
    if (pairs > 64 * count) return Disjointness::TooManyPairs;
    open.add(place[i], slice.column + slice.columns);
    ends.emplace(slice.row + slice.rows, i);
  }
  return Disjointness::Disjoint;
}

}  // namespace seqpar::attn
