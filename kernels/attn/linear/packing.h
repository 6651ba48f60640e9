// Division of a packed batch's sequences into segments. Compiles everywhere.
#pragma once

#include <vector>

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

/// Tokens of one sequence.
struct Sequence {
  int64_t begin = 0, end = 0;                  ///< of the rank; not empty
  bool continues = false, reachesEnd = false;  ///< as in Span
};

struct PackedSegments {
  Segments segments;  ///< without `spans`; the caller copies them to the device
  std::vector<Span> spans;
};

/// Cuts the sequences of a rank, in the order of their tokens, into segments of at most `most` tokens, a multiple of
/// kChunkTokens. Short sequences become isolated segments, except the last one: its state leaves the rank.
PackedSegments cutPacked(const std::vector<Sequence>& sequences, int64_t most);

}  // namespace seqpar::attn
