// Packed sequences of the kernels' cases, drawn as the start tokens of sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attn/linear/packing.h"

namespace seqpar::test {

/// Segments of at most `most` tokens. Starts are ascending; those outside of the tokens do not count. Tokens before the
/// first start belong to an earlier sequence. Without a start inside, the segments are not packed.
inline attn::PackedSegments packedBy(const std::vector<int64_t>& starts, int64_t tokens, int64_t most) {
  std::vector<int64_t> bounds;
  for (const int64_t start : starts) {
    if (start >= 0 && start < tokens) bounds.push_back(start);
  }
  if (bounds.empty()) return {};
  const bool continues = bounds.front() > 0;
  if (continues) bounds.insert(bounds.begin(), 0);
  bounds.push_back(tokens);
  std::vector<attn::Sequence> sequences;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    sequences.push_back({bounds[i], bounds[i + 1], i == 0 && continues, i + 2 == bounds.size()});
  }
  return attn::cutPacked(sequences, most);
}

}  // namespace seqpar::test
