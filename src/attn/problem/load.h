// The keys that queries need.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/block/slices.h"

namespace seqpar::attn {

/// Positions from `begin` up to, not including, `end`.
struct Interval {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
};

/// The keys that the queries at `queries` see, as disjoint ascending intervals.
std::vector<Interval> keysSeen(const SliceMask& mask, std::span<const Interval> queries);

/// The number of positions in `some` that are not in `others`; both disjoint and ascending.
int64_t countOutside(std::span<const Interval> some, std::span<const Interval> others);

}  // namespace seqpar::attn
