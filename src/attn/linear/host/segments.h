// Divides a rank's pieces into segments, which threads process concurrently, and segments into chunks.
#pragma once

#include <cstddef>
#include <vector>

#include "attn/linear/passes/shard.h"

namespace seqpar::attn::linear {

constexpr size_t kChunk = 64;  ///< tokens of a chunk

/// Chunks of one piece that one thread processes in order. The state before a segment is its piece's incoming state, or
/// the state after the previous segment.
struct Segment {
  size_t batch = 0, firstToken = 0, tokens = 0, firstChunk = 0, chunks = 0;
  bool continues = false;  ///< the previous segment belongs to the same piece
  bool continued = false;  ///< the next segment belongs to the same piece
  const Piece* piece = nullptr;
};

/// The division of a batch. All entries are divided equally: chunks and segments are numbered entry by entry. Memory
/// grows with the pieces of one entry only.
class Chunks {
 public:
  /// Divides so that `threads` have about equal work; pieces stay whole if there are enough of them. `heads`: processed
  /// independently. `pieces` must outlive this object.
  Chunks(const std::vector<Piece>& pieces, size_t batch, size_t heads, size_t threads);

  size_t count() const { return batch_ * chunksOfEntry_; }
  size_t segments() const { return batch_ * segmentsOfEntry(); }
  size_t segmentsOfEntry() const { return entry_.size(); }
  size_t longestSegment() const { return longest_; }  ///< chunks
  bool split() const { return split_; }               ///< some piece is divided into several segments

  Segment segment(size_t number) const;
  bool lastOfEntry(size_t segment) const { return (segment + 1) % segmentsOfEntry() == 0; }

  Segment segmentOf(size_t chunk) const;
  size_t firstToken(size_t chunk) const;
  size_t tokens(size_t chunk) const;

 private:
  std::vector<Segment> entry_;  // of the first batch entry
  size_t batch_, chunksOfEntry_ = 0, longest_ = 0;
  bool split_ = false;
};

}  // namespace seqpar::attn::linear
