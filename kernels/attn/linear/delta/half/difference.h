// The value that a token writes to the state, for the gradient of a beta that is almost 0.
#pragma once

#include "kernels/attn/linear/delta/half/channels.h"

namespace seqpar::attn::delta::half {

/// A token in one block of columns, whose beta is almost 0.
template <class State>
struct Token {
  const Task& task;
  int64_t batch;
  Chunk chunk;
  int head, t, first;  ///< first: of the columns
  KeyRows keys;
  State state;
  SquareRows written, dX;
};
/// A warp's sum over columns v of dX_v (value_v - (kIn S)_v - sum over earlier j of scores_j D_jv).
template <class T, class State>
SEQPAR_DEVICE_NOINLINE float differenceTerm(const Token<State> k) {
  const int lane = ptx::thread() % 32;
  const uint16_t* const row =
      static_cast<const uint16_t*>(k.task.v.data) + rowOf(k.task.v, k.batch, k.chunk.first + k.t, k.head) + k.first;
  const auto decayOfChannel = [&](int t, int c) {
    return k.task.width > 1 ? channelDecay(k.task, k.batch, k.chunk, k.head, t, c)
                            : decayOf(k.task, k.batch, k.chunk, k.head, t);
  };
  float values[2], run[kKeys / 32], sum = 0;
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) {
    values[h] = k.first + lane + 32 * h < k.task.dv ? ptx::lowOf<T>(row[lane + 32 * h]) : 0;
  }
  SEQPAR_UNROLL
  for (int m = 0; m < kKeys / 32; ++m) run[m] = 1;
  for (int j = k.t; j-- > 0;) {
    float score = 0;
    SEQPAR_UNROLL
    for (int m = 0; m < kKeys / 32; ++m) {
      const int c = lane + 32 * m;
      run[m] *= decayOfChannel(j + 1, c);
      score += forgetting(run[m], ptx::lowOf<T>(*k.keys.at(k.t, c)) * ptx::lowOf<T>(*k.keys.at(j, c)));
    }
    score = sumOfWarp(score);
    SEQPAR_UNROLL
    for (int h = 0; h < 2; ++h) values[h] -= forgetting(score, ptx::lowOf<T>(*k.written.at(lane + 32 * h, j)));
  }
  SEQPAR_UNROLL
  for (int m = 0; m < kKeys / 32; ++m) {
    const int own = lane + 32 * m;
    const float key = forgetting(run[m] * decayOfChannel(0, own), ptx::lowOf<T>(*k.keys.at(k.t, own)));
    for (int i = 0; i < 32; ++i) {
      const float factor = ptx::shfl(key, i);
      SEQPAR_UNROLL
      for (int h = 0; h < 2; ++h) {
        values[h] -= forgetting(factor, ptx::lowOf<T>(*k.state.at(lane + 32 * h, 32 * m + i)));
      }
    }
  }
  SEQPAR_UNROLL
  for (int h = 0; h < 2; ++h) sum += ptx::lowOf<T>(*k.dX.at(k.t, lane + 32 * h)) * values[h];
  return sumOfWarp(sum);
}

/// A token with a beta of almost 0, and a chunk's record in device memory.
struct RecordedToken {
  const Task& task;
  int64_t batch;
  Chunk chunk;
  int number, head, t;  ///< number: of the chunk in the window
};
/// The gradient of its beta by a warp: the sum of these terms over up to 32 kParts columns.
/// kChannel: decays of channels.
template <class T, int kParts, bool kChannel>
SEQPAR_DEVICE_NOINLINE float smallBetaGradient(const RecordedToken k) {
  const int lane = ptx::thread() % 32;
  const Record r = recordOf(k.task, k.batch, k.head, k.number);
  const auto number = [](uint16_t bits) { return ptx::lowOf<T>(bits); };
  constexpr int kRuns = kChannel ? kKeys / 32 : 1;
  const auto decay = [&](int t, int m) {
    if constexpr (kChannel) return channelDecay(k.task, k.batch, k.chunk, k.head, t, lane + 32 * m);
    return decayOf(k.task, k.batch, k.chunk, k.head, t);
  };
  const auto loadKey = [&](float(&key)[kKeys / 32], int t) {
    const int keyHead = k.head / (k.task.heads / k.task.keyHeads);
    const int64_t row = rowOf(k.task.k, k.batch, k.chunk.first + t, keyHead);
    float squares = 0;
    SEQPAR_UNROLL
    for (int m = 0; m < kKeys / 32; ++m) {
      const int c = lane + 32 * m;
      key[m] = c < k.task.dk ? number(static_cast<const uint16_t*>(k.task.k.data)[row + c]) : 0;
      squares += key[m] * key[m];
    }
    if (!k.task.normalize) return;
    const float norm = 1 / sqrtf(sumOfWarp(squares) + 1e-6F);
    SEQPAR_UNROLL
    for (auto& x : key) x = number(static_cast<uint16_t>(ptx::pack<T>(norm * x, 0)));
  };
  float values[kParts], mine[kKeys / 32], other[kKeys / 32], run[kRuns], sum = 0;
  SEQPAR_UNROLL
  for (auto& factor : run) factor = 1;
  loadKey(mine, k.t);
  SEQPAR_UNROLL
  for (int h = 0; h < kParts; ++h) {
    const int v = lane + 32 * h;
    const int64_t row = rowOf(k.task.v, k.batch, k.chunk.first + k.t, k.head);
    values[h] = v < k.task.dv ? number(static_cast<const uint16_t*>(k.task.v.data)[row + v]) : 0;
  }
  SEQPAR_ROLLED
  for (int j = k.t; j-- > 0;) {
    loadKey(other, j);
    SEQPAR_UNROLL
    for (int m = 0; m < kRuns; ++m) run[m] *= decay(j + 1, m);
    float score = 0;
    SEQPAR_UNROLL
    for (int m = 0; m < kKeys / 32; ++m) score += forgetting(run[m % kRuns], mine[m] * other[m]);
    score = sumOfWarp(score);
    SEQPAR_UNROLL
    for (int h = 0; h < kParts; ++h) values[h] -= forgetting(score, number(r.values[imageIndex(lane + 32 * h, j)]));
  }
  SEQPAR_UNROLL
  for (int m = 0; m < kRuns; ++m) run[m] *= decay(0, m);
  SEQPAR_UNROLL
  for (int m = 0; m < kKeys / 32; ++m) {
    const float key = forgetting(run[m % kRuns], mine[m]);
    SEQPAR_ROLLED
    for (int i = 0; i < 32; ++i) {
      const float factor = ptx::shfl(key, i);
      SEQPAR_UNROLL
      for (int h = 0; h < kParts; ++h) {
        values[h] -= forgetting(factor, number(r.state[stateIndex(lane + 32 * h, 32 * m + i)]));
      }
    }
  }
  if constexpr (kChannel) {
    SEQPAR_UNROLL
    for (int h = 0; h < kParts; ++h) {
      float dX = 0;
      SEQPAR_ROLLED
      for (int s = k.t; s < kRows; ++s) {
        dX += forgetting(number(r.inverse[imageIndex(s, k.t)]), number(r.dWritten[imageIndex(lane + 32 * h, s)]));
      }
      sum += dX * values[h];
    }
    return sumOfWarp(sum);
  }
  // dX = dD - sum over later j of scores of keys times gradients of values; dD = P^T dO + kOut dY.
  float dX[kParts] = {}, later = 1;
  const auto valueOf = [&](const auto& tensor, int t, int h) {
    const int v = lane + 32 * h;
    const auto* const data = static_cast<const uint16_t*>(static_cast<const void*>(tensor.data));
    return v < k.task.dv ? number(data[rowOf(tensor, k.batch, k.chunk.first + t, k.head) + v]) : 0;
  };
  SEQPAR_ROLLED
  for (int j = k.t; j < k.chunk.rows; ++j) {
    float score = 0;
    if (j > k.t) {
      later *= decay(j, 0);
      loadKey(other, j);
      SEQPAR_UNROLL
      for (int m = 0; m < kKeys / 32; ++m) score += forgetting(later, mine[m] * other[m]);
      score = sumOfWarp(score);
    }
    const float through = number(r.scores[imageIndex(j, k.t)]);
    SEQPAR_UNROLL
    for (int h = 0; h < kParts; ++h) {
      dX[h] += forgetting(through, valueOf(k.task.dOut, j, h));
      if (j > k.t) dX[h] -= forgetting(score, valueOf(k.task.dv_, j, h));
    }
  }
  SEQPAR_UNROLL
  for (int m = 0; m < kKeys / 32; ++m) {
    const float key = forgetting(later, mine[m]);
    SEQPAR_ROLLED
    for (int i = 0; i < 32; ++i) {
      const float factor = ptx::shfl(key, i);
      SEQPAR_UNROLL
      for (int h = 0; h < kParts; ++h) {
        dX[h] += forgetting(factor, number(r.dState[stateIndex(lane + 32 * h, 32 * m + i)]));
      }
    }
  }
  SEQPAR_UNROLL
  for (int h = 0; h < kParts; ++h) sum += dX[h] * values[h];
  return sumOfWarp(sum);
}

}  // namespace seqpar::attn::delta::half
