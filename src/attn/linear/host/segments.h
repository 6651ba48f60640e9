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

/// The cut of a batch, whose entries are cut alike: chunks and segments are numbered entry by entry. What is kept grows
/// with the pieces of one entry only.
class Chunks {
 public:
  /// So that `threads` have about equal work, pieces staying whole where there are enough of them. `heads`: that are
  /// worked on independently. `pieces` must outlive this.
  Chunks(const std::vector<Piece>& pieces, size_t batch, size_t heads, size_t threads);

  size_t count() const { return batch_ * chunksOfEntry_; }
  size_t segments() const { return batch_ * segmentsOfEntry(); }
  size_t segmentsOfEntry() const { return entry_.size(); }
  bool split() const { return split_; }  ///< some piece has several segments

  Segment segment(size_t number) const;
  bool lastOfEntry(size_t segment) const { return (segment + 1) % segmentsOfEntry() == 0; }

  Segment segmentOf(size_t chunk) const;
  size_t firstToken(size_t chunk) const;
  size_t tokens(size_t chunk) const;

 private:
  std::vector<Segment> entry_;  // of the first one
  size_t batch_, chunksOfEntry_ = 0;
  bool split_ = false;
};

}  // namespace seqpar::attn::linear
