// Sums over the blocks of keys of a head with more than 128 channels. dv: a CTA of the gradients' kernels for token
// decays processes both blocks of a segment one after the other, keeps dv of the first one in device memory, and adds
// it to dv of the second one. Threads read only values that they wrote themselves, so there is no barrier.
#pragma once

#include "kernels/arch/gpu_memory.h"
#include "kernels/attn/linear/backward/tiles_sm90.h"

namespace seqpar::attn::backward::sm90 {

/// Gates' gradients with kWide: stores the term of the first block of keys, or adds that of a later one. A number's
/// terms have the same thread, and nothing waits for the addition.
template <bool kWide>
SEQPAR_DEVICE void putOrAdd(float* to, float term, int keyBlock) {
  if (kWide && keyBlock > 0) {
    ptx::redAddRelaxedGpu(to, term);
  } else {
    *to = term;
  }
}

struct ValueSums {
  float* own;  ///< this thread's elements of a chunk

  SEQPAR_DEVICE ValueSums(const Task& task, int chunk, const Half& me) {
    const int64_t chunks = (task.segmentTokens + kChunk - 1) / kChunk;
    own = task.valueSums + (ptx::block() * chunks + chunk) * kValueSums + me.thread * 4;
  }
  /// Adds the sum of earlier blocks of keys. Returns whether `dv` is complete; otherwise stores it.
  SEQPAR_DEVICE bool completes(Half::Part& dv, int keyBlock, int keyBlocks) const {
    if (keyBlock > 0) {
      SEQPAR_UNROLL
      for (int n = 0; n < Half::kTiles8; ++n) {
        uint32_t words[4];
        ptx::load(words, own + n * kNext);
        SEQPAR_UNROLL
        for (int e = 0; e < 4; ++e) dv[n][e] += asFloat(words[e]);
      }
    }
    if (keyBlock + 1 == keyBlocks) return true;
    SEQPAR_UNROLL
    for (int n = 0; n < Half::kTiles8; ++n) {
      const uint32_t words[4] = {asBits(dv[n][0]), asBits(dv[n][1]), asBits(dv[n][2]), asBits(dv[n][3])};
      ptx::store(own + n * kNext, words);
    }
    return false;
  }

 private:
  static constexpr int kNext = Half::kThreads * 4;
  static_assert(Half::kTiles8 * kNext == kValueSums);
};

}  // namespace seqpar::attn::backward::sm90
