// Decays of channels in a chunk (Kimi Delta Attention, arXiv 2510.26692), as products of decays from the starts and to
// the ends of blocks of 16 tokens: no factor is above 1. Between blocks scores are products of decayed rows; within a
// block a column is divided by its decay from the block's start, unless that decay is so small that a pair of tokens
// needs the product of the decays between them ("steep").
#pragma once

#include <cmath>

#include "kernels/arch/predicated.h"
#include "kernels/attn/linear/delta/half/tokens.h"

namespace seqpar::attn::delta::half {

/// Decay of token t of the chunk.
SEQPAR_DEVICE float channelDecay(const Task& task, int64_t batch, const Chunk& chunk, int head, int t, int c) {
  if (t >= chunk.rows || c >= task.dk) return 1;
  return decayOfLog(loadNumber(task.gates.data, task.gateType, rowOf(task.gates, batch, chunk.first + t, head) + c));
}

/// Decays of a block: those of a channel with a smaller product than kFast are fast, and steep below kSteep.
enum Decays : uint32_t { kMildDecays = 0, kFastDecays = 1, kSteepDecays = 2 };
constexpr float kFast = 0x1p-32F, kSteep = 0x1p-116F;
SEQPAR_DEVICE uint32_t decaysOf(const float (&products)[2]) {
  const float least = products[0] < products[1] ? products[0] : products[1];
  return least < kSteep ? kSteepDecays : least < kFast ? kFastDecays : kMildDecays;
}

/// 1 / x of a power of 2.
SEQPAR_DEVICE float inverseOfPower(float x) {
  return asFloat(0x7f000000U - asBits(x));
}

/// The larger ones of the low and of the high 16 bits.
SEQPAR_DEVICE uint32_t maxOfPairs(uint32_t x, uint32_t y) {
#ifdef __CUDA_ARCH__
  return __vmaxu2(x, y);
#else
  const uint32_t low = (x & 0xffffU) > (y & 0xffffU) ? x & 0xffffU : y & 0xffffU;
  return low | (x >> 16 > y >> 16 ? x & 0xffff0000U : y & 0xffff0000U);
#endif
}
/// The largest magnitude of elements of type bf16, as the bits of a float. NaN is the largest.
struct Magnitude {
  uint32_t most = 0;
  SEQPAR_DEVICE void add(uint32_t pair) { most = maxOfPairs(most, pair & 0x7fff7fffU); }
  SEQPAR_DEVICE uint32_t bits() const {
    const uint32_t low = most << 16, high = most & 0xffff0000U;
    return low > high ? low : high;
  }
};
/// Whether a power of 2 takes a magnitude to where fp16 has all digits.
SEQPAR_DEVICE bool fitsPower(uint32_t bits) {
  return bits >> 23 > 127 - 40 && bits >> 23 < 127 + 40;
}
/// That power, for 2^exponent ... 2^(exponent + 1).
SEQPAR_DEVICE float powerTo(int exponent, uint32_t bits) {
  return asFloat((254U + static_cast<uint32_t>(exponent) - (bits >> 23)) << 23);
}

/// kThreadsOfRow threads have a row: multiplies rows by norms[t] if `scales`; with kMagnitudes, adds their magnitudes.
template <class T, int kThreadsOfRow, bool kMagnitudes>
SEQPAR_DEVICE void scaleRows(const KeyRows& rows, const float* norms, bool scales, Magnitude& magnitude) {
  constexpr int kUnits = kKeys / 8 / kThreadsOfRow;
  const int t = threadAgain() / kThreadsOfRow, part = threadAgain() % kThreadsOfRow;
  const float norm = norms[t];
  SEQPAR_UNROLL
  for (int n = 0; n < kUnits; ++n) {
    uint32_t words[4];
    ptx::load(words, rows.unit(t, part + n * kThreadsOfRow));
    SEQPAR_UNROLL
    for (uint32_t& word : words) {
      if (scales) word = ptx::pack<T>(norm * ptx::lowOf<T>(word), norm * ptx::highOf<T>(word));
      if constexpr (kMagnitudes) magnitude.add(word);
    }
    if (scales) ptx::store(rows.unit(t, part + n * kThreadsOfRow), words);
  }
}

/// Operands of scores in fp16, of mild decays: a row is multiplied by a power of 2 that takes its largest element to
/// 1/4 ... 1/2, a channel of a block by one near the root of the block's decay, and its other operand is divided by it:
/// so neither is above 2^15, also where a column is divided by its decay. Returns whether the powers of all rows are
/// between 2^-40 and 2^40. 256 threads. Also norms[t] as loadNorms().
template <class T, class Rows>
SEQPAR_DEVICE bool findUps(float* ups, float* norms, const Rows& rows, bool normalize, float scale) {
  const int t = ptx::thread() / 4, part = ptx::thread() % 4;
  Magnitude magnitude;
  float sums[2] = {};
  SEQPAR_UNROLL
  for (int unit = part; unit < kKeys / 8; unit += 4) {
    uint32_t words[4];
    ptx::load(words, rows.unit(t, unit));
    SEQPAR_UNROLL
    for (const uint32_t word : words) {
      magnitude.add(word);
      const float low = ptx::lowOf<T>(word), high = ptx::highOf<T>(word);
      sums[0] += low * low;
      sums[1] += high * high;
    }
  }
  uint32_t most = magnitude.bits();
  float squares = sums[0] + sums[1];
  SEQPAR_UNROLL
  for (int mask = 1; mask < 4; mask *= 2) {
    const uint32_t other = asBits(ptx::shflXor(asFloat(most), mask));
    most = other > most ? other : most;
    squares += ptx::shflXor(squares, mask);
  }
  const float norm = scale * (normalize ? 1 / sqrtf(squares + 1e-6F) : 1);
  const uint32_t bits = asBits(asFloat(most) * norm) & 0x7fffffffU;
  const bool fits = fitsPower(bits);
  if (part == 0) {
    norms[t] = norm;
    ups[t] = fits ? powerTo(-2, bits) : 1;
  }
  return ptx::voteAll(fits || most == 0);
}
/// The power of a channel with that product of decays, 2^-32 ... 1.
SEQPAR_DEVICE float balanceOf(float product) {
  return asFloat((127 + (127 - (asBits(product) >> 23)) / 2) << 23);
}
/// Keys before a block are multiplied by it: so they keep digits.
constexpr float kNearUp = 0x1p16F;

/// channelDecay() in few instructions per call.
template <class = void>
SEQPAR_DEVICE_NOINLINE float anyChannelDecay(const Task& task, int64_t batch, const Chunk& chunk, int head, int t,
                                             int c) {
  return channelDecay(task, batch, chunk, head, t, c);
}
/// Decays of tokens `first` ... first + kTokens - 1 of the chunk, of the channels c and c + 1.
template <int kTokens>
SEQPAR_DEVICE void loadDecays(float (&of)[kTokens][2], const Task& task, int64_t batch, const Chunk& chunk, int head,
                              int first, int c) {
  const int64_t start = rowOf(task.gates, batch, chunk.first + first, head) + c;
  const int bytes = task.gateType == seqparFloat32 ? 4 : 2;
  const char* from = static_cast<const char*>(task.gates.data) + start * bytes;
  const int64_t step = task.gates.token * bytes;
  const bool paired = (reinterpret_cast<uintptr_t>(from) | static_cast<uintptr_t>(step)) % (2 * bytes) == 0;
  if (c >= task.dk) {
    SEQPAR_UNROLL
    for (auto& pair : of) pair[0] = pair[1] = 1;
    return;
  }
  if (!paired || first + kTokens > chunk.rows || c + 1 == task.dk) {
    SEQPAR_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      of[i][0] = anyChannelDecay<>(task, batch, chunk, head, first + i, c);
      of[i][1] = anyChannelDecay<>(task, batch, chunk, head, first + i, c + 1);
    }
    return;
  }
  if (bytes == 4) {
    SEQPAR_UNROLL
    for (int i = 0; i < kTokens; ++i, from += step) {
      ptx::loadPair(reinterpret_cast<const float*>(from), of[i][0], of[i][1]);
    }
  } else {
    SEQPAR_UNROLL
    for (int i = 0; i < kTokens; ++i, from += step) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(from);
      const bool isBf16 = task.gateType == seqparBfloat16;
      of[i][0] = isBf16 ? ptx::lowOf<Bf16>(pair) : ptx::lowOf<Fp16>(pair);
      of[i][1] = isBf16 ? ptx::highOf<Bf16>(pair) : ptx::highOf<Fp16>(pair);
    }
  }
  SEQPAR_UNROLL
  for (auto& pair : of) {
    pair[0] = decayOfLog(pair[0]);
    pair[1] = decayOfLog(pair[1]);
  }
}

/// The same in two steps. In flight: the logarithms of whole chunks with gates of fp32.
template <int kTokens>
SEQPAR_DEVICE bool startDecays(float (&of)[kTokens][2], const Task& task, int64_t batch, const Chunk& chunk, int head,
                               int first, int c) {
  const auto* const from = static_cast<const float*>(task.gates.data);
  const int64_t start = rowOf(task.gates, batch, chunk.first + first, head) + c, step = task.gates.token;
  const bool starts = task.gateType == seqparFloat32 && chunk.rows == kRows && c + 1 < task.dk &&
                      (reinterpret_cast<uintptr_t>(from + start) | static_cast<uintptr_t>(step * 4)) % 8 == 0;
  SEQPAR_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    of[i][0] = of[i][1] = 0;
    ptx::loadGlobalPairIf(of[i][0], of[i][1], from + start + i * step, starts);
  }
  return starts;
}
template <int kTokens>
SEQPAR_DEVICE void finishDecays(float (&of)[kTokens][2], bool started, const Task& task, int64_t batch,
                                const Chunk& chunk, int head, int first, int c) {
  if (!ptx::voteAll(started)) return loadDecays(of, task, batch, chunk, head, first, c);
  SEQPAR_UNROLL
  for (auto& pair : of) {
    pair[0] = decayOfLog(pair[0]);
    pair[1] = decayOfLog(pair[1]);
  }
}

/// Prefetches a chunk's decays to L2; the first 4 kRows threads.
SEQPAR_DEVICE void prefetchChannelDecays(const Task& task, int64_t batch, const Chunk& chunk, int head, int thread) {
  const int t = thread / 4, c = thread % 4 * (kKeys / 4);
  if (t >= chunk.rows || c >= task.dk) return;
  const int64_t at = rowOf(task.gates, batch, chunk.first + t, head) + c;
  ptx::prefetch(static_cast<const char*>(task.gates.data) + at * (task.gateType == seqparFloat32 ? 4 : 2));
}

/// The decays of a block of 16 tokens and a pair of channels: those of one of 256 threads.
struct BlockDecays {
  float of[kBlock][2];

  SEQPAR_DEVICE static int block() { return ptx::thread() / (kKeys / 2); }
  SEQPAR_DEVICE static int channel() { return ptx::thread() % (kKeys / 2) * 2; }

  SEQPAR_DEVICE bool start(const Task& task, int64_t batch, const Chunk& chunk, int head) {
    return startDecays(of, task, batch, chunk, head, block() * kBlock, channel());
  }
  SEQPAR_DEVICE void finish(bool started, const Task& task, int64_t batch, const Chunk& chunk, int head) {
    finishDecays(of, started, task, batch, chunk, head, block() * kBlock, channel());
  }
  /// The block's products at totals[block][channel], and the Decays of the warp's 64 channels.
  SEQPAR_DEVICE void storeTotals(float* totals, int* steep) const {
    float run[2] = {1, 1};
    SEQPAR_UNROLL
    for (const auto& pair : of) {
      run[0] *= pair[0];
      run[1] *= pair[1];
    }
    ptx::storePair(totals + block() * kKeys + channel(), run[0], run[1]);
    const uint32_t any = ptx::reduxMax(decaysOf(run));
    const int lane = ptx::thread() % 32;
    if (lane < 2) steep[block() * kSteepParts + channel() / 64 * 2 + lane] = static_cast<int>(any);
  }
  /// Whether the thread's elements of rows are finite.
  template <class T>
  SEQPAR_DEVICE bool allFinite(const KeyRows& rows) const {
    float zero = 0;
    SEQPAR_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      const uint32_t pair = rows.pair(block() * kBlock + i, channel());
      zero += 0 * ptx::lowOf<T>(pair) + 0 * ptx::highOf<T>(pair);
    }
    return zero == 0;
  }
  /// The products of the decays of earlier blocks, of later blocks, and of those between this block and block n.
  struct Ends {
    float before[2] = {1, 1}, after[2] = {1, 1}, toStart[kBlocks][2];
  };
  SEQPAR_DEVICE static Ends ends(const float* totals) { return ends(totals, block(), channel()); }
  SEQPAR_DEVICE static Ends ends(const float* totals, int block, int channel) {
    Ends ends;
    SEQPAR_UNROLL
    for (int n = 0; n < kBlocks; ++n) {
      float total[2];
      ptx::loadPair(totals + n * kKeys + channel, total[0], total[1]);
      SEQPAR_UNROLL
      for (int e = 0; e < 2; ++e) {
        ends.toStart[n][e] = ends.after[e];
        if (n < block) ends.before[e] *= total[e];
        if (n > block) ends.after[e] *= total[e];
      }
    }
    return ends;
  }
};

SEQPAR_DEVICE bool isSteep(const int* steep, int block) {
  int any = 0;
  SEQPAR_UNROLL
  for (int n = 0; n < kSteepParts; ++n) any |= steep[kSteepParts * block + n];
  return (any & kSteepDecays) != 0;
}

/// Tokens of a chunk in device memory, for steep blocks.
template <class T>
struct SteepRows {
  const Task& task;
  int64_t batch;
  const Chunk& chunk;
  int head;
  const float *kNorm, *qNorm;

  SEQPAR_DEVICE float row(const Input& tensor, float norm, int t, int c) const {
    if (t >= chunk.rows || c >= task.dk) return 0;
    const int keyHead = head / (task.heads / task.keyHeads);
    const uint16_t bits = static_cast<const uint16_t*>(tensor.data)[rowOf(tensor, batch, chunk.first + t, keyHead) + c];
    return ptx::lowOf<T>(ptx::pack<T>(norm * ptx::lowOf<T>(bits), 0));
  }
  /// Scores of the pair of columns j, j + 1 (j even), by a warp: calls put(i, x0, y0, x1, y1) with the scores of the
  /// key and the query of token i on the first lane.
  template <class Put>
  SEQPAR_DEVICE void score(int j, const Put& put) const {
    const int lane = ptx::thread() % 32;
    float run[kKeys / 32][2];
    for (auto& pair : run) pair[0] = pair[1] = 1;
    SEQPAR_ROLLED
    for (int i = j; i < (j / kBlock + 1) * kBlock; ++i) {
      float sums[4] = {};
      SEQPAR_UNROLL
      for (int m = 0; m < kKeys / 32; ++m) {
        const int c = lane + 32 * m;
        const float decay = i > j ? channelDecay(task, batch, chunk, head, i, c) : 1;
        run[m][0] *= decay;
        if (i > j + 1) run[m][1] *= decay;
        const float key = row(task.k, kNorm[i], i, c), query = row(task.q, qNorm[i], i, c);
        SEQPAR_UNROLL
        for (int n = 0; n < 2; ++n) {
          const float other = row(task.k, kNorm[j + n], j + n, c);
          sums[2 * n] += forgetting(run[m][n], key * other);
          sums[2 * n + 1] += forgetting(run[m][n], query * other);
        }
      }
      for (auto& sum : sums) sum = sumOfWarp(sum);
      if (lane == 0) put(i, sums[0], sums[1], sums[2], sums[3]);
    }
  }
};

}  // namespace seqpar::attn::delta::half
