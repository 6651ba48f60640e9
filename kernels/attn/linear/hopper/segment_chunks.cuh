// The chunks of a segment on which its map depends (segment_states.cuh), and decays of their tokens.
#pragma once

#include "kernels/attn/linear/hopper/pipeline.cuh"

namespace seqpar::attn::hopper {

enum class Pass { Forward, Backward };

/// The chunks of an item that its map depends on. Forward: from its last token to the start of the sequence that its
/// end belongs to. Backward: from its first token to the end of the sequence that comes into it.
template <Pass P>
struct ItemChunks {
  int64_t begin;  ///< of the item; chunks begin at multiples of kChunk from it
  int64_t end;
  int64_t start;  ///< of the next sequence in that direction's way, if in the item, or -1
  int whole;      ///< chunks of the item
  int count;      ///< of the sequence

  __device__ __forceinline__ ItemChunks(const LinearProblem& problem, const Item& item)
      : begin(item.begin), end(item.end), start(-1) {
    whole = end > begin ? static_cast<int>((end - begin + kChunk - 1) / kChunk) : 0;
    if constexpr (P == Pass::Forward) {
      const int64_t starts = startsBefore(problem, end);
      if (starts > 0 && problem.starts[starts - 1] >= begin) start = problem.starts[starts - 1];
      count = whole - (start >= 0 ? static_cast<int>((start - begin) / kChunk) : 0);
    } else {
      const int64_t starts = startsBefore(problem, begin);
      if (problem.starts != nullptr && starts < problem.startCount && problem.starts[starts] < end) {
        start = problem.starts[starts];
      }
      count = start >= 0 ? static_cast<int>((start - begin + kChunk - 1) / kChunk) : whole;
    }
  }
  /// The first token of the chunk that comes as the `number`th.
  __device__ __forceinline__ int64_t token(int number) const {
    return begin + int64_t{P == Pass::Forward ? whole - 1 - number : number} * kChunk;
  }
  /// Tokens of a chunk that belong to other sequences: [first, last).
  __device__ __forceinline__ int firstOther(int64_t token) const {
    if (P == Pass::Forward) return 0;
    return start >= 0 && start < token + kChunk ? static_cast<int>(start - token) : kChunk;
  }
  __device__ __forceinline__ int lastOther(int64_t token) const {
    if (P == Pass::Backward) return kChunk;
    return start > token ? static_cast<int>(start - token) : 0;
  }
};

/// From which chunk of an item on, by its running number, all is forgotten. The preparing warpgroup finds out and says
/// so in shared memory (-1 before); chunks that are on their way by then pass through unused. The others must look when
/// that chunk comes: later the number may be that of another item.
template <int Stages>
struct Skip {
  volatile int* from;
  int first, count;  ///< the item's chunks

  /// Of the chunk `running` or one before it, whose barrier has made `from` known.
  __device__ __forceinline__ bool skips(int running) const {
    const int at = *from;
    return at >= first && at <= running;
  }
  /// How many chunks are loaded once that is known.
  __device__ __forceinline__ int loaded() const { return min(count, *from - first + Stages); }
};

/// Log2-decays that all channels have, of tokens `lane` and 32 + `lane` of a chunk; two chunks ahead.
template <Pass P>
class TokenDecays {
 public:
  __device__ __forceinline__ TokenDecays(const LinearProblem& problem, const Item& item, const ItemChunks<P>& chunks)
      : chunks_(chunks), constant_(problem.gate == Gate::Head ? headGate(problem, item.head) : 0) {
    if (problem.gate == Gate::Token) {
      data_ = static_cast<const float*>(problem.gates.data) + item.batch * problem.gates.batch +
              item.head * problem.gates.head;
      stride_ = problem.gates.token;
    }
    next_ = read(0);
    after_ = read(1);
  }
  __device__ __forceinline__ float2 take(int number) {
    const float2 now = next_;
    next_ = after_;
    after_ = read(number + 2);
    return make_float2(log2Decay(now.x), log2Decay(now.y));
  }

 private:
  static __device__ __forceinline__ float headGate(const LinearProblem& problem, int head) {
    return static_cast<const float*>(problem.gates.data)[head];
  }
  __device__ __forceinline__ float2 read(int number) const {
    const int64_t token = chunks_.token(number) + threadIdx.x % 32;
    return make_float2(readToken(number, token), readToken(number, token + 32));
  }
  __device__ __forceinline__ float readToken(int number, int64_t token) const {
    if (number >= chunks_.count || token >= chunks_.end) return 0;
    return data_ == nullptr ? constant_ : data_[token * stride_];
  }

  const ItemChunks<P>& chunks_;
  const float* data_ = nullptr;
  int64_t stride_ = 0;
  float constant_;
  float2 next_, after_;
};

}  // namespace seqpar::attn::hopper
