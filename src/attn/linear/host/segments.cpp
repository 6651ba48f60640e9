#include "attn/linear/host/segments.h"

#include <algorithm>
#include <limits>

#include "attn/linear/host/chunk.h"

namespace seqpar::attn::linear {
namespace {

constexpr size_t kTasksOfThread = 4;  // so that the last ones to finish are not waited for long
constexpr size_t kFewestChunks = 4;   // of a segment that is cut off: each costs a state to keep and to fold

size_t chunksOf(const Piece& piece) {
  return (piece.tokens + kChunk - 1) / kChunk;
}

}  // namespace

size_t Chunks::firstToken(size_t chunk) const {
  return segment(chunk).firstToken + (chunk - segment(chunk).firstChunk) * kChunk;
}

size_t Chunks::tokens(size_t chunk) const {
  return std::min(kChunk, segment(chunk).firstToken + segment(chunk).tokens - firstToken(chunk));
}

Chunks cutIntoChunks(const std::vector<Piece>& pieces, size_t heads, size_t threads) {
  size_t all = 0;
  for (const auto& piece : pieces) all += chunksOf(piece);
  const size_t most = threads <= 1 ? std::numeric_limits<size_t>::max()
                                   : std::max(kFewestChunks, all * heads / (kTasksOfThread * threads));
  Chunks result;
  for (const auto& piece : pieces) {
    const size_t chunks = chunksOf(piece);
    const size_t segments = chunks / most + (chunks % most != 0 ? 1 : 0);
    for (size_t s = 0; s < segments; ++s) {
      const size_t begin = chunks * s / segments, end = chunks * (s + 1) / segments;
      const size_t firstToken = piece.first + begin * kChunk;
      const size_t behind = std::min(piece.first + end * kChunk, piece.first + piece.tokens);
      result.segmentOfChunk.insert(result.segmentOfChunk.end(), end - begin, result.segments.size());
      result.segments.push_back({piece.batch, firstToken, behind - firstToken, result.count() - (end - begin),
                                 end - begin, s > 0, s + 1 < segments, &piece});
    }
  }
  return result;
}

}  // namespace seqpar::attn::linear
