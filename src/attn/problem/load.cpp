#include "attn/problem/load.h"

#include <algorithm>
#include <limits>

namespace seqpar::attn {
namespace {

/// The keys that the rows of the slice from `begin` up to, not including, `end` see, relative to the slice.
Interval keysOf(const Rectangle& s, int64_t begin, int64_t end) {
  Interval keys{0, s.columns};
  if (s.lower != std::numeric_limits<int64_t>::min()) keys.begin = std::max<int64_t>(0, begin + s.lower);
  if (s.upper != std::numeric_limits<int64_t>::max()) keys.end = std::min(s.columns, end + s.upper);
  return keys;
}

}  // namespace

std::vector<Interval> keysSeen(const SliceMask& mask, std::span<const Interval> queries) {
  std::vector<Interval> all;
  for (const auto& rows : queries) {
    if (rows.length() <= 0) continue;
    mask.each(rows.begin, rows.end, [&](const Rectangle& s) {
      const auto keys = keysOf(s, std::max(rows.begin, s.row) - s.row, std::min(rows.end, s.row + s.rows) - s.row);
      if (keys.length() > 0) all.push_back({s.column + keys.begin, s.column + keys.end});
    });
  }
  std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> joined;
  for (const auto& keys : all) {
    if (joined.empty() || joined.back().end < keys.begin) {
      joined.push_back(keys);
    } else {
      joined.back().end = std::max(joined.back().end, keys.end);
    }
  }
  return joined;
}

int64_t countOutside(std::span<const Interval> some, std::span<const Interval> others) {
  int64_t count = 0;
  auto other = others.begin();
  for (const auto& interval : some) {
    count += interval.length();
    while (other != others.end() && other->end <= interval.begin) ++other;
    for (auto at = other; at != others.end() && at->begin < interval.end; ++at) {
      count -= std::min(at->end, interval.end) - std::max(at->begin, interval.begin);
    }
  }
  return count;
}

}  // namespace seqpar::attn
