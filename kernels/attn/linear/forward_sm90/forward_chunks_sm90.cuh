// The chunks of an item from its first token to its last.
#pragma once

#include "kernels/attn/linear/forward_sm90/pipeline_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

struct Chunk {
  int token = 0;
  int length = 0;  ///< at most kChunk; shorter at the item's end, where another sequence's tokens may follow
};

class ForwardChunks {
 public:
  SEQPAR_DEVICE explicit ForwardChunks(const Item& item)
      : token_(static_cast<int>(item.begin)), end_(static_cast<int>(item.end)) {}
  SEQPAR_DEVICE bool more() const { return token_ < end_; }
  SEQPAR_DEVICE Chunk take() {
    Chunk chunk;
    chunk.token = token_;
    chunk.length = min(end_ - token_, kChunk);
    token_ += chunk.length;
    return chunk;
  }

 private:
  int token_, end_;
};

}  // namespace seqpar::attn::forward_sm90
