// Factors of tokens in pass 1 (segment_states_sm90.cuh), for heads with one decay of all channels: a warp stores those
// of a chunk in its stage.
//
// In the transform warpgroup, fence.proxy.async would wait for these loads. A warp waits for all of its outstanding
// loads at once, so it loads the gates of several chunks together, and uses them while it waits for those of the next
// ones.
#pragma once

#include "kernels/attn/linear/forward_sm90/segment_chunks_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/sweeps_sm90.cuh"
#include "kernels/attn/linear/head_input_gates.h"

namespace seqpar::attn::forward_sm90 {

/// Factors of the tokens of chunks, for heads with one decay of all channels: input gates times decays to the segment's
/// end (backward: from its start), and the log2-decay from the chunk's far end. A warp stores those of one or two heads
/// in the chunk's stage.
template <Pass P, int Heads, bool Gated>
class TokenGates {
 public:
  static constexpr int kAfter = Heads * kChunk;  ///< per stage: [Heads][kChunk] factors, then [Heads] decays
  static constexpr int kBytes = (kAfter + Heads) * 4;

  SEQPAR_DEVICE TokenGates(const LinearProblem& problem, const Sweep& item) : chunks_(item) {
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const int head = h == 0 ? item.head : item.second;
      if (problem.gate == Gate::Head) constant_[h] = static_cast<const float*>(problem.gates.data)[head];
      if (problem.gate == Gate::Token) {
        decays_[h] = static_cast<const float*>(problem.gates.data) + item.batch * problem.gates.batch +
                     head * problem.gates.head;
      }
      if (Gated) inputs_[h] = HeadInputGates(problem.inputGates, problem.inputGateType, item.batch, head);
    }
    stride_ = problem.gates.token;
  }

  /// Calls next(number) for each chunk, which returns where its gates are stored, or NULL to end; then stored(number).
  /// Returns the number of chunks.
  template <class Next, class Stored>
  SEQPAR_DEVICE int run(const Next& next, const Stored& stored) const {
    Bits later[kTogether];
    float decay[Heads] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) load(later[i], i);
    for (int start = 0; start < chunks_.count; start += kTogether) {
      Bits now[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) now[i] = later[i];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) load(later[i], start + kTogether + i);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (start + i >= chunks_.count) break;
        float* const to = next(start + i);
        if (to == nullptr) return start + i;
        put(to, now[i], decay);
        __syncwarp();
        stored(start + i);
      }
    }
    return chunks_.count;
  }

 private:
  static constexpr int kTogether = 2;
  struct Bits {
    float decays[Heads][2];
    uint32_t inputs[Heads][2];
  };

  static SEQPAR_DEVICE int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  SEQPAR_DEVICE void load(Bits& to, int number) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t token = chunks_.token(number) + lane() + 32 * i;
      const bool there = number < chunks_.count && token < chunks_.end;
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        to.decays[h][i] = there ? constant_[h] : 0;
        to.inputs[h][i] = 0;
        if (there && decays_[h] != nullptr) to.decays[h][i] = decays_[h][token * stride_];
        if (Gated && there) to.inputs[h][i] = inputs_[h].bitsOf(token);
      }
    }
  }
  /// Adds the chunk's decay to `later`.
  SEQPAR_DEVICE void put(float* to, const Bits& bits, float (&later)[Heads]) const {
    constexpr int kLast = P == Pass::Forward ? 0 : 31;  // the lane with the sum of all other lanes
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const float2 own = make_float2(log2Decay(bits.decays[h][0]), log2Decay(bits.decays[h][1]));
      const float2 sums = make_float2(sumBehind(own.x), sumBehind(own.y));
      const float2 total =
          make_float2(__shfl_sync(0xffffffffU, sums.x + own.x, kLast), __shfl_sync(0xffffffffU, sums.y + own.y, kLast));
      const float2 exponents = P == Pass::Forward ? make_float2(total.y + sums.x, sums.y)
                                                  : make_float2(sums.x + own.x, total.x + (sums.y + own.y));
      const float x = ptx::ex2Approx(later[h] + exponents.x), y = ptx::ex2Approx(later[h] + exponents.y);
      to[h * kChunk + lane()] = Gated ? inputs_[h].valueOf(bits.inputs[h][0]) * x : x;
      to[h * kChunk + 32 + lane()] = Gated ? inputs_[h].valueOf(bits.inputs[h][1]) * y : y;
      later[h] += total.x + total.y;
      if (lane() == 0) to[kAfter + h] = later[h];
    }
  }
  /// The sum over later lanes; backward: over earlier ones.
  static SEQPAR_DEVICE float sumBehind(float own) {
    const int behind = P == Pass::Forward ? 31 - lane() : lane();
    const auto from = [](float number, int distance) {
      return P == Pass::Forward ? __shfl_down_sync(0xffffffffU, number, distance)
                                : __shfl_up_sync(0xffffffffU, number, distance);
    };
    float sum = from(own, 1);
    if (behind == 0) sum = 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float more = from(sum, distance);
      if (behind >= distance) sum += more;
    }
    return sum;
  }

  ItemChunks<P> chunks_;
  const float* decays_[Heads] = {};
  int64_t stride_ = 0;
  float constant_[Heads] = {};
  HeadInputGates inputs_[Heads];
};

}  // namespace seqpar::attn::forward_sm90
