// One thread's program of the short convolution: a stretch of tokens of V adjacent channels, with a window of inputs,
// and in backward of gradients, in registers. W, 4 or 8, is the longest kernel that the window supports. Compiles
// everywhere: kernels and tests run the same code.
#pragma once

#include <cmath>
#include <initializer_list>

#include "kernels/arch/numbers.h"
#include "kernels/attn/short_conv/args.h"

namespace seqpar::attn::short_conv {

struct Fp32 {
  using Bits = float;
  static SEQPAR_DEVICE float toFloat(float number) { return number; }
  static SEQPAR_DEVICE float fromFloat(float number) { return number; }
};
struct Fp16 {
  using Bits = uint16_t;
  static SEQPAR_DEVICE float toFloat(uint16_t bits) { return halfToFloat(bits); }
  static SEQPAR_DEVICE uint16_t fromFloat(float number) { return static_cast<uint16_t>(floatsToHalves(number, 0)); }
};
struct Bf16 {
  using Bits = uint16_t;
  static SEQPAR_DEVICE float toFloat(uint16_t bits) { return bfloatToFloat(bits); }
  static SEQPAR_DEVICE uint16_t fromFloat(float number) { return static_cast<uint16_t>(floatsToBfloats(number, 0)); }
};

/// V elements that are loaded and stored at once.
template <class Bits, int V>
struct alignas(V * sizeof(Bits)) Group {
  Bits value[V];
};

template <class T, int W, int V>
class Run {
 public:
  SEQPAR_DEVICE Run(const ConvTask& task, int64_t batch, int64_t channel)
      : task_(task), batch_(batch), channel_(channel), halo_(task.width - 1) {
    SEQPAR_UNROLL
    for (int c = 0; c < V; ++c) {
      SEQPAR_UNROLL
      for (int j = 0; j < W; ++j) {
        weights_[j][c] = j < task.width ? ofWeights(task.weight, (channel + c) * task.width + halo_ - j) : 0;
      }
      bias_[c] = task.bias != nullptr ? ofWeights(task.bias, channel + c) : 0;
    }
  }

  SEQPAR_DEVICE void forward(int64_t begin, int64_t end) {
    open(begin);
    for (int64_t t = begin; t < end; ++t) {
      float z[V];
      convolve(t, z);
      SEQPAR_UNROLL
      for (int c = 0; c < V; ++c) z[c] = task_.silu ? z[c] * sigmoid(z[c]) : z[c];
      store(task_.y, t, z);
    }
  }

  /// Computes the gradients of z of the first tokens.
  SEQPAR_DEVICE void edge() {
    open(0);
    for (int64_t t = 0; t < task_.edgeTokens; ++t) {
      float z[V], dz[V];
      convolve(t, z);
      differentiate(t, z, dz);
      float* const to = task_.edge + (batch_ * task_.edgeTokens + t) * task_.channels + channel_;
      SEQPAR_UNROLL
      for (int c = 0; c < V; ++c) to[c] = dz[c];
    }
  }

  /// Computes dx of the tokens; stores their terms of dWeight and dBias in row `row` of the terms, [width +
  /// 1][channels].
  SEQPAR_DEVICE void backward(int64_t begin, int64_t end, int64_t row) {
    float behind[W][V] = {};  // behind[j]: gradient of z of token t - j
    float dWeights[W][V] = {}, dBias[V] = {};
    open(begin);
    for (int64_t t = begin; t < end + W - 1; ++t) {
      float dz[V] = {};
      if (t < task_.tokens) {
        float z[V];
        convolve(t, z);
        differentiate(t, z, dz);
      } else if (t < task_.tokens + halo_) {
        const float* const from = task_.right + (batch_ * halo_ + t - task_.tokens) * task_.channels + channel_;
        SEQPAR_UNROLL
        for (int c = 0; c < V; ++c) dz[c] = from[c];
      }
      if (t < end) addWeights(t, dz, dWeights, dBias);
      SEQPAR_UNROLL
      for (int j = W - 1; j > 0; --j) {
        SEQPAR_UNROLL
        for (int c = 0; c < V; ++c) behind[j][c] = behind[j - 1][c];
      }
      SEQPAR_UNROLL
      for (int c = 0; c < V; ++c) behind[0][c] = dz[c];
      const int64_t done = t - (W - 1);
      if (done < begin) continue;
      float dx[V] = {};
      const int reach = task_.behind[done];
      SEQPAR_UNROLL
      for (int j = 0; j < W; ++j) {
        SEQPAR_UNROLL
        for (int c = 0; c < V; ++c) {
          if (j <= reach) dx[c] += weights_[j][c] * behind[W - 1 - j][c];
        }
      }
      store(task_.dx, done, dx);
    }
    float* const terms = task_.terms + row * (task_.width + 1) * task_.channels + channel_;
    SEQPAR_UNROLL
    for (int c = 0; c < V; ++c) {
      SEQPAR_UNROLL
      for (int j = 0; j < W; ++j) {
        if (j < task_.width) terms[(halo_ - j) * task_.channels + c] = dWeights[j][c];
      }
      terms[task_.width * task_.channels + c] = dBias[c];
    }
  }

 private:
  using Numbers = Group<typename T::Bits, V>;

  SEQPAR_DEVICE float ofWeights(const void* data, int64_t i) const {
    if (task_.weightType == 0) return static_cast<const float*>(data)[i];
    const auto bits = static_cast<const uint16_t*>(data)[i];
    return task_.weightType == 1 ? halfToFloat(bits) : bfloatToFloat(bits);
  }
  static SEQPAR_DEVICE float sigmoid(float z) { return 1 / (1 + expf(-z)); }

  SEQPAR_DEVICE void load(const void* rows, int64_t row, float (&to)[V]) const {
    const auto numbers =
        *reinterpret_cast<const Numbers*>(static_cast<const typename T::Bits*>(rows) + row * task_.channels + channel_);
    SEQPAR_UNROLL
    for (int c = 0; c < V; ++c) to[c] = T::toFloat(numbers.value[c]);
  }
  SEQPAR_DEVICE void store(void* rows, int64_t t, const float (&from)[V]) const {
    Numbers numbers;
    SEQPAR_UNROLL
    for (int c = 0; c < V; ++c) numbers.value[c] = T::fromFloat(from[c]);
    *reinterpret_cast<Numbers*>(static_cast<typename T::Bits*>(rows) + (batch_ * task_.tokens + t) * task_.channels +
                                channel_) = numbers;
  }
  SEQPAR_DEVICE void input(int64_t t, float (&to)[V]) const {
    if (t < 0) return load(task_.left, batch_ * halo_ + halo_ + t, to);
    load(task_.x, batch_ * task_.tokens + t, to);
  }

  /// Loads the window before token t: x_[j] is the input of token t - 1 - j.
  SEQPAR_DEVICE void open(int64_t begin) {
    SEQPAR_UNROLL
    for (int j = 0; j < W; ++j) {
      if (j < halo_) {
        input(begin - 1 - j, x_[j]);
      } else {
        SEQPAR_UNROLL
        for (int c = 0; c < V; ++c) x_[j][c] = 0;
      }
    }
  }
  /// Computes z of token `t`, the next one, and shifts its input into the window.
  SEQPAR_DEVICE void convolve(int64_t t, float (&z)[V]) {
    SEQPAR_UNROLL
    for (int j = W - 1; j > 0; --j) {
      SEQPAR_UNROLL
      for (int c = 0; c < V; ++c) x_[j][c] = x_[j - 1][c];
    }
    input(t, x_[0]);
    const int reach = task_.before[t];
    SEQPAR_UNROLL
    for (int c = 0; c < V; ++c) z[c] = bias_[c];
    SEQPAR_UNROLL
    for (int j = 0; j < W; ++j) {
      SEQPAR_UNROLL
      for (int c = 0; c < V; ++c) {
        if (j <= reach) z[c] += weights_[j][c] * x_[j][c];
      }
    }
  }
  SEQPAR_DEVICE void differentiate(int64_t t, const float (&z)[V], float (&dz)[V]) const {
    load(task_.dy, batch_ * task_.tokens + t, dz);
    if (!task_.silu) return;
    SEQPAR_UNROLL
    for (int c = 0; c < V; ++c) {
      const float s = sigmoid(z[c]);
      dz[c] *= s * (1 + z[c] * (1 - s));
    }
  }
  SEQPAR_DEVICE void addWeights(int64_t t, const float (&dz)[V], float (&dWeights)[W][V], float (&dBias)[V]) const {
    const int reach = task_.before[t];
    SEQPAR_UNROLL
    for (int c = 0; c < V; ++c) {
      dBias[c] += dz[c];
      SEQPAR_UNROLL
      for (int j = 0; j < W; ++j) {
        if (j <= reach) dWeights[j][c] += dz[c] * x_[j][c];
      }
    }
  }

  const ConvTask& task_;
  int64_t batch_, channel_;
  int halo_;
  float weights_[W][V], bias_[V], x_[W][V];
};

/// Division of the tokens into stretches, `count` in each batch entry.
struct Stretches {
  int64_t tokens = 1, count = 0;
};
constexpr int64_t kForwardStretch = 32, kBackwardStretch = 64;
SEQPAR_BOTH_INLINE Stretches forwardStretches(int64_t tokens) {
  return {kForwardStretch, (tokens + kForwardStretch - 1) / kForwardStretch};
}
/// Few enough that their terms can be added sequentially.
SEQPAR_BOTH_INLINE Stretches backwardStretches(const ConvTask& task) {
  constexpr int64_t kMost = 512;
  const int64_t needed = (task.batch * task.tokens + kMost - 1) / kMost;
  const int64_t tokens = needed > kBackwardStretch ? needed : kBackwardStretch;
  return {tokens, (task.tokens + tokens - 1) / tokens};
}

/// Whether Run supports 4 channels at once.
inline bool byFours(const ConvTask& task) {
  const size_t bytes = task.type == 0 ? 16 : 8;
  bool aligned = task.channels % 4 == 0;
  for (const void* rows :
       {task.x, task.left, static_cast<const void*>(task.y), task.dy, static_cast<const void*>(task.dx)}) {
    aligned = aligned && reinterpret_cast<uintptr_t>(rows) % bytes == 0;
  }
  return aligned;
}

/// gradient[i] = the sum of its terms over all stretches; i indexes [width + 1][channels].
SEQPAR_DEVICE void addTerms(const ConvTask& task, int64_t rows, int64_t i) {
  const int64_t size = (task.width + 1) * task.channels, channel = i % task.channels, which = i / task.channels;
  float sum = 0;
  SEQPAR_ROLLED
  for (int64_t row = 0; row < rows; ++row) sum += task.terms[row * size + i];
  if (which == task.width) {
    if (task.dBias != nullptr) task.dBias[channel] = sum;
  } else if (task.dWeight != nullptr) {
    task.dWeight[channel * task.width + which] = sum;
  }
}

}  // namespace seqpar::attn::short_conv
