// The chunks of a segment in the order of pass 1 (segment_states_sm90.cuh), and decays of their tokens.
#pragma once

#include "kernels/attn/linear/forward_sm90/pipeline_sm90.cuh"
#include "kernels/attn/linear/head_input_gates.h"

namespace seqpar::attn::forward_sm90 {

enum class Pass { Forward, Backward };

/// The chunks of an item: forward from its last token to its first, backward from its first to its last.
template <Pass P>
struct ItemChunks {
  int64_t begin, end;  ///< tokens of the item; the first chunk starts at `begin`
  int count;

  SEQPAR_DEVICE explicit ItemChunks(const Item& item)
      : begin(item.begin),
        end(item.end),
        count(end > begin ? static_cast<int>((end - begin + kChunk - 1) / kChunk) : 0) {}
  /// The first token of the `number`th chunk in that order.
  SEQPAR_DEVICE int64_t token(int number) const {
    return begin + int64_t{P == Pass::Forward ? count - 1 - number : number} * kChunk;
  }
  /// The number of its tokens.
  SEQPAR_DEVICE int length(int number) const { return static_cast<int>(min(end - token(number), int64_t{kChunk})); }
};

/// Marks chunks that are skipped, because all state is forgotten from some chunk of an item on. The transform warpgroup
/// detects this when later chunks are already in flight, and marks the stage of each. It may be items ahead of the
/// consumers: a mark per stage stays valid until the stage is free again, unlike a single word for all stages.
template <int Stages>
struct Skip {
  volatile int* marks;  ///< per stage

  /// Called by one thread, before the chunk `running` is prepared.
  SEQPAR_DEVICE void mark(int running, bool skipped) const { marks[running % Stages] = skipped ? 1 : 0; }
  /// Valid after `running` was prepared, and before its stage is prepared again.
  SEQPAR_DEVICE bool skips(int running) const { return marks[running % Stages] != 0; }
  /// The number of loaded chunks of `count`, if the chunks from `number` on are skipped.
  static SEQPAR_DEVICE int loaded(int number, int count) { return min(count, number + Stages); }
};

/// Log2-decays for all channels, of tokens `lane` and 32 + `lane` of a chunk; loaded two chunks ahead.
template <Pass P>
class TokenDecays {
 public:
  SEQPAR_DEVICE TokenDecays(const LinearProblem& problem, const Item& item, const ItemChunks<P>& chunks)
      : chunks_(chunks), constant_(problem.gate == Gate::Head ? headGate(problem, item.head) : 0) {
    if (problem.gate == Gate::Token) {
      data_ = static_cast<const float*>(problem.gates.data) + item.batch * problem.gates.batch +
              item.head * problem.gates.head;
      stride_ = problem.gates.token;
    }
    next_ = read(0);
    after_ = read(1);
  }
  SEQPAR_DEVICE float2 take(int number) {
    const float2 now = next_;
    next_ = after_;
    after_ = read(number + 2);
    return make_float2(log2Decay(now.x), log2Decay(now.y));
  }

 private:
  static SEQPAR_DEVICE float headGate(const LinearProblem& problem, int head) {
    return static_cast<const float*>(problem.gates.data)[head];
  }
  SEQPAR_DEVICE float2 read(int number) const {
    const int64_t token = chunks_.token(number) + threadIdx.x % 32;
    return make_float2(readToken(number, token), readToken(number, token + 32));
  }
  SEQPAR_DEVICE float readToken(int number, int64_t token) const {
    if (number >= chunks_.count || token >= chunks_.end) return 0;
    return data_ == nullptr ? constant_ : data_[token * stride_];
  }

  const ItemChunks<P>& chunks_;
  const float* data_ = nullptr;
  int64_t stride_ = 0;
  float constant_;
  float2 next_, after_;
};

/// Input gates of tokens `lane` and 32 + `lane` of a chunk, likewise.
template <Pass P>
class TokenInputs {
 public:
  SEQPAR_DEVICE TokenInputs(const LinearProblem& problem, const Item& item, const ItemChunks<P>& chunks)
      : chunks_(chunks), gates_(problem.inputGates, problem.inputGateType, item.batch, item.head) {
    next_ = read(0);
    after_ = read(1);
  }
  SEQPAR_DEVICE float2 take(int number) {
    const float2 now = next_;
    next_ = after_;
    after_ = read(number + 2);
    return now;
  }

 private:
  SEQPAR_DEVICE float2 read(int number) const {
    const int64_t token = chunks_.token(number) + threadIdx.x % 32;
    return make_float2(readToken(number, token), readToken(number, token + 32));
  }
  SEQPAR_DEVICE float readToken(int number, int64_t token) const {
    return number >= chunks_.count || token >= chunks_.end ? 0 : gates_.read(token);
  }

  const ItemChunks<P>& chunks_;
  HeadInputGates gates_;
  float2 next_, after_;
};
/// Without input gates.
struct NoInputs {
  template <Pass P>
  SEQPAR_DEVICE NoInputs(const LinearProblem&, const Item&, const ItemChunks<P>&) {}
  static SEQPAR_DEVICE float2 take(int) { return make_float2(1, 1); }
};

}  // namespace seqpar::attn::forward_sm90
