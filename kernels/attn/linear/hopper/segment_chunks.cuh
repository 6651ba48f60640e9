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

/// Which chunks pass through unused, as all is forgotten from one of an item on. The preparing warpgroup finds out,
/// when others are on their way already, and marks each chunk's stage. It may be items ahead of those that multiply: a
/// mark stays until its stage is free again, as one word for all stages would not.
template <int Stages>
struct Skip {
  volatile int* marks;  ///< of each stage

  /// One thread, before the chunk `running` is prepared.
  __device__ __forceinline__ void mark(int running, bool skipped) const { marks[running % Stages] = skipped ? 1 : 0; }
  /// After `running` was prepared, and before its stage is prepared again.
  __device__ __forceinline__ bool skips(int running) const { return marks[running % Stages] != 0; }
  /// How many chunks of `count` are loaded if those from `number` on are skipped.
  static __device__ __forceinline__ int loaded(int number, int count) { return min(count, number + Stages); }
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
