// How a rank's pieces are cut into segments, which threads work on at the same time, and these into chunks.
#pragma once

#include <cstddef>
#include <vector>

#include "attn/linear/passes/shard.h"

namespace seqpar::attn::linear {

/// Chunks of one piece that one thread goes through in order. The state before a segment comes from where its piece's
/// comes from, or from the segment before.
struct Segment {
  size_t batch = 0, firstToken = 0, tokens = 0, firstChunk = 0, chunks = 0;
  bool continues = false;  ///< the segment before is of the same piece
  bool continued = false;  ///< so is the one behind
  const Piece* piece = nullptr;
};

struct Chunks {
  std::vector<Segment> segments;
  std::vector<size_t> segmentOfChunk;

  size_t count() const { return segmentOfChunk.size(); }
  size_t firstToken(size_t chunk) const;
  size_t tokens(size_t chunk) const;
  bool first(size_t chunk) const { return segment(chunk).firstChunk == chunk; }  ///< of its segment
  bool last(size_t chunk) const { return segment(chunk).firstChunk + segment(chunk).chunks == chunk + 1; }
  const Segment& segment(size_t chunk) const { return segments[segmentOfChunk[chunk]]; }
};

/// Cuts pieces so that `threads` have about equal work, pieces staying whole where there are enough of them. `heads`:
/// that are worked on independently.
Chunks cutIntoChunks(const std::vector<Piece>& pieces, size_t heads, size_t threads);

}  // namespace seqpar::attn::linear
