#include "attn/linear/host/segments.h"

#include <algorithm>
#include <limits>

namespace seqpar::attn::linear {
namespace {

constexpr size_t kTasksOfThread = 4;  // so that threads finish at about the same time
constexpr size_t kFewestChunks = 4;   // minimum length of a split segment: each segment costs a stored state and a fold

size_t chunksOf(const Piece& piece) {
  return (piece.tokens + kChunk - 1) / kChunk;
}

}  // namespace

Chunks::Chunks(const std::vector<Piece>& pieces, size_t batch, size_t heads, size_t threads) : batch_(batch) {
  size_t all = 0;
  for (const auto& piece : pieces) all += chunksOf(piece);
  const size_t most = threads <= 1 ? std::numeric_limits<size_t>::max()
                                   : std::max(kFewestChunks, all * batch * heads / (kTasksOfThread * threads));
  for (const auto& piece : pieces) {
    const size_t chunks = chunksOf(piece);
    const size_t segments = chunks / most + (chunks % most != 0 ? 1 : 0);
    for (size_t s = 0; s < segments; ++s) {
      const size_t begin = chunks * s / segments, end = chunks * (s + 1) / segments;
      const size_t firstToken = piece.first + begin * kChunk;
      const size_t behind = std::min(piece.first + end * kChunk, piece.first + piece.tokens);
      entry_.push_back(
          {0, firstToken, behind - firstToken, chunksOfEntry_, end - begin, s > 0, s + 1 < segments, &piece});
      chunksOfEntry_ += end - begin;
      longest_ = std::max(longest_, end - begin);
    }
    split_ = split_ || segments > 1;
  }
}

Segment Chunks::segment(size_t number) const {
  const size_t batch = number / segmentsOfEntry();
  Segment segment = entry_[number % segmentsOfEntry()];
  segment.batch = batch;
  segment.firstChunk += batch * chunksOfEntry_;
  return segment;
}

Segment Chunks::segmentOf(size_t chunk) const {
  const size_t batch = chunk / chunksOfEntry_;
  const auto behind = std::upper_bound(entry_.begin(), entry_.end(), chunk % chunksOfEntry_,
                                       [](size_t c, const Segment& segment) { return c < segment.firstChunk; });
  return segment(batch * segmentsOfEntry() + static_cast<size_t>(behind - entry_.begin()) - 1);
}

size_t Chunks::firstToken(size_t chunk) const {
  const Segment segment = segmentOf(chunk);
  return segment.firstToken + (chunk - segment.firstChunk) * kChunk;
}

size_t Chunks::tokens(size_t chunk) const {
  const Segment segment = segmentOf(chunk);
  return std::min(kChunk, segment.tokens - (chunk - segment.firstChunk) * kChunk);
}

}  // namespace seqpar::attn::linear
