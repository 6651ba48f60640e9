// The tokens that one rank has in one layout and another rank in another layout, as few regular patterns.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "layout/run.h"

namespace seqpar {

/// count[0] x count[1] blocks of `length` tokens, row-major: where they lie in the memory of the rank that has them in
/// the first layout ("from"), and of the one that has them in the second ("to"). Strides in tokens.
struct Overlap {
  int64_t from = 0, to = 0;
  int64_t length = 0;
  std::array<int64_t, 2> count{1, 1};
  std::array<int64_t, 2> fromStride{0, 0}, toStride{0, 0};
};

/// All tokens that are in both lists, each once. Takes time that grows with the number of runs, and for two runs of
/// many blocks with the blocks in a common period; not with the number of tokens.
std::vector<Overlap> overlaps(std::span<const seqparLayoutRun_t> from, std::span<const seqparLayoutRun_t> to);

}  // namespace seqpar
