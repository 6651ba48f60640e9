// The chunks of an item from its first token to its last. Sequences of a packed batch begin with chunks of their own,
// so that nothing within a chunk is forgotten for their sake.
#pragma once

#include "kernels/attn/linear/hopper/pipeline.cuh"

namespace seqpar::attn::hopper {

struct Chunk {
  int token = 0;
  int length = 0;      ///< at most kChunk; shorter before a sequence's start and at the end
  bool fresh = false;  ///< a sequence begins here
};

class ForwardChunks {
 public:
  __device__ __forceinline__ ForwardChunks(const LinearProblem& problem, const Item& item)
      : problem_(problem),
        token_(static_cast<int>(item.begin)),
        end_(static_cast<int>(item.end)),
        index_(static_cast<int>(startsBefore(problem, item.begin))) {
    find();
  }
  __device__ __forceinline__ bool more() const { return token_ < end_; }
  __device__ __forceinline__ Chunk take() {
    Chunk chunk;
    chunk.token = token_;
    while (start_ <= token_) {
      chunk.fresh = true;
      ++index_;
      find();
    }
    const int end = min(start_, end_);
    chunk.length = min(end - token_, kChunk);
    token_ += chunk.length;
    return chunk;
  }

 private:
  __device__ __forceinline__ void find() {
    const bool there = problem_.starts != nullptr && index_ < problem_.startCount;
    start_ = there ? static_cast<int>(min(problem_.starts[index_], int64_t{INT32_MAX})) : INT32_MAX;
  }

  const LinearProblem& problem_;
  int token_, end_, index_, start_ = INT32_MAX;
};

}  // namespace seqpar::attn::hopper
