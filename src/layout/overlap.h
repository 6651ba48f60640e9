// The tokens that one rank holds in one layout and another rank holds in another layout, as few regular patterns.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "layout/run.h"

namespace seqpar {

/// count[0] x count[1] blocks of `length` tokens, row-major: their addresses on the rank that holds them in the first
/// layout (from) and on the rank that holds them in the second layout (to). Strides in tokens.
struct Overlap {
  int64_t from = 0, to = 0;
  int64_t length = 0;
  std::array<int64_t, 2> count{1, 1};
  std::array<int64_t, 2> fromStride{0, 0}, toStride{0, 0};
};

/// All tokens that are in both lists, each once. The time grows with the number of runs and, for two runs of many
/// blocks, with the blocks in a common period; not with the number of tokens.
std::vector<Overlap> overlaps(std::span<const seqparLayoutRun_t> from, std::span<const seqparLayoutRun_t> to);

}  // namespace seqpar
