// Random disjoint slices, and their scores by the definition.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "seqpar/attn_plan.h"

namespace seqpar::attn::test {

/// Whether the slice contains the query at position i and the key at position j.
inline bool contains(const seqparAttnSlice_t& s, int64_t i, int64_t j) {
  const int64_t row = i - s.row, column = j - s.column;
  if (row < 0 || row >= s.rows || column < 0 || column >= s.columns) return false;
  return (s.lower == INT64_MIN || column >= row + s.lower) && (s.upper == INT64_MAX || column <= row + s.upper);
}

/// Cuts a box of queries and keys at random and appends disjoint slices of its parts. Some parts stay empty, so queries
/// may see nothing and keys may be seen by no query.
inline void drawSlices(std::mt19937_64& random, int64_t q0, int64_t q1, int64_t k0, int64_t k1, int depth,
                       std::vector<seqparAttnSlice_t>& out) {
  const auto within = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  if (depth > 0 && random() % 4 != 0) {
    if (random() % 2 == 0) {
      const int64_t cut = within(q0, q1);
      drawSlices(random, q0, cut, k0, k1, depth - 1, out);
      return drawSlices(random, cut, q1, k0, k1, depth - 1, out);
    }
    const int64_t cut = within(k0, k1);
    drawSlices(random, q0, q1, k0, cut, depth - 1, out);
    return drawSlices(random, q0, q1, cut, k1, depth - 1, out);
  }
  const int64_t lower = within(-(q1 - q0), k1 - k0), upper = within(lower, k1 - k0);
  switch (random() % 7) {
    case 0:
      out.push_back(SEQPAR_ATTN_SLICE_FULL(q0, q1, k0, k1));
      break;
    case 1:
      out.push_back(SEQPAR_ATTN_SLICE_CAUSAL(q0, q1, k0, k1));
      break;
    case 2:
      out.push_back(SEQPAR_ATTN_SLICE_INVERSE_CAUSAL(q0, q1, k0, k1));
      break;
    case 3:
      out.push_back(SEQPAR_ATTN_SLICE_BICAUSAL(q0, q1, k0, k1));
      break;
    case 4:
      out.push_back({q0, q1 - q0, k0, k1 - k0, lower, upper});
      break;
    case 5:  // two bands of one box
      out.push_back({q0, q1 - q0, k0, k1 - k0, INT64_MIN, lower - 1});
      out.push_back({q0, q1 - q0, k0, k1 - k0, upper, INT64_MAX});
      break;
    default:
      break;
  }
}

inline std::vector<seqparAttnSlice_t> drawSlices(std::mt19937_64& random, int64_t tokens, int64_t keys, int depth = 4) {
  std::vector<seqparAttnSlice_t> slices;
  drawSlices(random, 0, tokens, 0, keys, depth, slices);
  if (slices.empty()) slices.push_back(SEQPAR_ATTN_SLICE_FULL(0, 0, 0, 0));
  return slices;
}

}  // namespace seqpar::attn::test
