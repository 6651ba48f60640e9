// A caller's block kernel for seqparAttnDesc_t::kernel.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>

#include "softmax_run.h"

namespace seqpar::attn::test {

/// A caller's block kernel, by the definition. Its tiles are valid only during the call, so work on a stream copies
/// them.
struct NaiveKernel {
  static float* at(const seqparAttnTensor_t& t, int64_t b, int64_t row, int64_t head) {
    return static_cast<float*>(t.data) + b * t.batchStride + row * t.tokenStride + head * t.headStride;
  }

  static void compute(const seqparAttnTile_t& t, bool backward) {
    const int64_t group = t.heads / t.kvHeads;
    if (backward) {
      clear(t.dq, t.batch, t.rows, t.heads, t.headDim);
      clear(t.dk, t.batch, t.columns, t.kvHeads, t.headDim);
      clear(t.dv, t.batch, t.columns, t.kvHeads, t.valueDim);
    }
    for (int64_t b = 0; b < t.batch; ++b) {
      for (int64_t h = 0; h < t.heads; ++h) {
        for (int64_t i = 0; i < t.rows; ++i) row(t, backward, b, h, h / group, i);
      }
    }
  }

  static void clear(const seqparAttnTensor_t& t, int64_t batch, int64_t rows, int64_t heads, int64_t dim) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t h = 0; h < heads; ++h) std::fill_n(at(t, b, i, h), dim, 0.0f);
      }
    }
  }

  static void row(const seqparAttnTile_t& t, bool backward, int64_t b, int64_t h, int64_t kv, int64_t i) {
    std::map<int64_t, double> scores;
    double most = -INFINITY;
    for (int64_t j = 0; j < t.columns; ++j) {
      if ((t.lower != INT64_MIN && j < i + t.lower) || (t.upper != INT64_MAX && j > i + t.upper)) continue;
      double score = 0;
      for (int64_t e = 0; e < t.headDim; ++e) score += double{at(t.q, b, i, h)[e]} * double{at(t.k, b, j, kv)[e]};
      scores[j] = score * double{t.scale};
      most = std::max(most, scores[j]);
    }
    float& lse = t.lse[b * t.lseBatchStride + h * t.lseHeadStride + i];
    if (!backward) {
      double sum = 0;
      for (const auto& [j, score] : scores) sum += std::exp(score - most);
      lse = scores.empty() ? -INFINITY : static_cast<float>(most + std::log(sum));
      for (int64_t e = 0; e < t.valueDim; ++e) {
        double out = 0;
        for (const auto& [j, score] : scores) out += std::exp(score - most) / sum * double{at(t.v, b, j, kv)[e]};
        at(t.out, b, i, h)[e] = static_cast<float>(out);
      }
      return;
    }
    double delta = 0;
    for (int64_t e = 0; e < t.valueDim; ++e) delta += double{at(t.out, b, i, h)[e]} * double{at(t.dOut, b, i, h)[e]};
    for (const auto& [j, score] : scores) {
      const double p = std::exp(score - double{lse});
      double dp = 0;
      for (int64_t e = 0; e < t.valueDim; ++e) {
        dp += double{at(t.dOut, b, i, h)[e]} * double{at(t.v, b, j, kv)[e]};
        at(t.dv, b, j, kv)[e] += static_cast<float>(p * double{at(t.dOut, b, i, h)[e]});
      }
      const double ds = p * (dp - delta) * double{t.scale};
      for (int64_t e = 0; e < t.headDim; ++e) {
        at(t.dq, b, i, h)[e] += static_cast<float>(ds * double{at(t.k, b, j, kv)[e]});
        at(t.dk, b, j, kv)[e] += static_cast<float>(ds * double{at(t.q, b, i, h)[e]});
      }
    }
  }

  /// Counts the kernel's calls, and selects the one that fails.
  struct Calls {
    std::atomic<int> count{0};
    int failsAt = 0;                ///< 0: none
    bool onStream = false;          ///< fails in the launched function, not in the call
    std::function<void()> instead;  ///< on a stream: runs in that function instead of the failure
  };

  static int enqueue(void* self, const seqparAttnTile_t* tile, void* stream, bool backward) {
    auto& calls = *static_cast<Calls*>(self);
    const bool fails = ++calls.count == calls.failsAt;
    if (fails && !(calls.onStream && stream != nullptr)) return 42;
    if (stream == nullptr) {
      compute(*tile, backward);
      return 0;
    }
    struct Work {
      seqparAttnTile_t tile;
      bool backward, fails;
      seqparStream_t stream;
      const std::function<void()>* instead;
    };
    const auto run = [](void* argument) {
      const std::unique_ptr<Work> work(static_cast<Work*>(argument));
      if (work->fails && *work->instead) {
        (*work->instead)();
        compute(work->tile, work->backward);
      } else if (work->fails) {
        seqparStreamFail(work->stream, seqparSystemError, "the test's kernel failed on its stream");
      } else {
        compute(work->tile, work->backward);
      }
    };
    auto* const on = static_cast<seqparStream_t>(stream);
    return seqparStreamLaunch(on, run, new Work{*tile, backward, fails, on, &calls.instead});
  }

  static int forward(void* self, const seqparAttnTile_t* tile, void* stream) {
    return enqueue(self, tile, stream, false);
  }
  static int backward(void* self, const seqparAttnTile_t* tile, void* stream) {
    return enqueue(self, tile, stream, true);
  }
};

}  // namespace seqpar::attn::test
