// Tiles of scores of the host block kernel: the keys that queries see.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "attn/block/block.h"

namespace seqpar::attn {

constexpr int64_t kKeyChunk = 1024;  ///< keys that are converted together, before all queries use them

inline size_t size(int64_t value) {
  return static_cast<size_t>(value);
}

struct TileRange {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};

/// The columns of `within` that row `i` of the rectangle sees.
inline TileRange seenBy(const Rectangle& r, int64_t i, TileRange within) {
  if (r.lower != std::numeric_limits<int64_t>::min()) within.begin = std::max(within.begin, i + r.lower);
  if (r.upper != std::numeric_limits<int64_t>::max()) within.end = std::min(within.end, i + r.upper + 1);
  return within;
}

/// The columns that at least one of the rows sees.
inline TileRange seenByAny(const Rectangle& r, int64_t firstRow, int64_t rows, TileRange within) {
  if (r.lower != std::numeric_limits<int64_t>::min()) within.begin = std::max(within.begin, firstRow + r.lower);
  if (r.upper != std::numeric_limits<int64_t>::max()) within.end = std::min(within.end, firstRow + rows + r.upper);
  return within;
}

constexpr int64_t kRows = 48;      ///< queries of a tile
constexpr int64_t kWideRows = 96;  ///< of a wide one; both are whole register tiles of products

/// Queries of a rectangle's tiles in fp32; `units` of batch entries and key heads share the work. A wide tile reads
/// packed keys less often. It computes 48 more hidden keys of a query at each edge of the mask, and there are fewer
/// tiles for threads. Does not depend on threads, nor do the sums' bits.
inline int64_t rowsOfTile(const Rectangle& r, int64_t units) {
  constexpr int64_t kKeysOfEdge = 512, kLeastTiles = 64;
  const TileRange seen = seenBy(r, r.rows / 2, {0, r.columns});
  const int64_t edges = (r.lower != std::numeric_limits<int64_t>::min() ? 1 : 0) +
                        (r.upper != std::numeric_limits<int64_t>::max() ? 1 : 0);
  const bool pays = seen.end - seen.begin >= kKeysOfEdge * edges;
  return pays && units * r.rows >= kLeastTiles * kWideRows ? kWideRows : kRows;
}

/// The first query head of a key head and the one after its last.
inline std::pair<int64_t, int64_t> queryHeads(const BlockShape& shape, int64_t kvHead) {
  return {std::max<int64_t>(0, kvHead * shape.group - shape.phase),
          std::min(shape.heads, (kvHead + 1) * shape.group - shape.phase)};
}

}  // namespace seqpar::attn
