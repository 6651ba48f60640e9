#include "attn/linear/passes/shard.h"

#include <algorithm>

namespace seqpar::attn::linear {

uint8_t Shard::flags(seqparDirection_t direction) const {
  if (sequences == 0 || pieces.empty()) return 0;
  const bool forward = direction == seqparForward;
  unsigned bits = 0;
  if (forward ? pieces.front().begins : !pieces.back().reachesEnd) bits |= SEQPAR_SCAN_RESET_IN;
  if (pieces.size() > 1) bits |= SEQPAR_SCAN_CUT;
  return static_cast<uint8_t>(bits);
}

std::vector<Piece> cutIntoPieces(std::span<const int64_t> cuSeqlens, int64_t begin, int64_t end) {
  std::vector<Piece> pieces;
  if (begin == end) return pieces;
  if (cuSeqlens.empty()) return {{0, static_cast<size_t>(end - begin), false, 0, true}};
  for (size_t s = 0; s + 1 < cuSeqlens.size(); ++s) {
    const int64_t from = std::max(cuSeqlens[s], begin), to = std::min(cuSeqlens[s + 1], end);
    if (from >= to) continue;
    const bool ends = cuSeqlens[s + 1] <= end && cuSeqlens[s + 1] < cuSeqlens.back();
    pieces.push_back(
        {static_cast<size_t>(from - begin), static_cast<size_t>(to - from), from == cuSeqlens[s], s, !ends});
  }
  return pieces;
}

}  // namespace seqpar::attn::linear
