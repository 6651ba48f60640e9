// The first step: the parts of a chunk's recurrence that depend on no state.
//
// Work      a CTA has one (chunk, head, batch entry)
// Roles     rows of q and k by warps; running products of decays by threads of one channel each, so that no exponent is
//           above 0; scores by products of all warps; the inverse by substitution in blocks of 16 and by columns
// Tiles     chunks of 64 tokens; products in tiles of 16 x 16 (product.h)
// Smem      sharedNumbers(): decays between tokens, later the lower triangle; the inverse; a block's sums
// Barriers  __syncthreads() between steps
// Overlap   none
#pragma once

#include "kernels/attn/linear/delta/product.h"

namespace seqpar::attn::delta {

class Prepare {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Prepare(task).steps(); }

 private:
  SEQPAR_DEVICE explicit Prepare(const Task& t) : task_(t), dk_(padded(t.dk)), exact_(t.type == seqparFloat32) {
    int64_t index = ptx::block();
    const int chunk = static_cast<int>(index % t.count);
    index /= t.count;
    head_ = static_cast<int>(index % t.heads);
    batch_ = index / t.heads;
    chunk_ = t.chunks[t.first + chunk];
    record_ = recordAt(t, batch_, head_, chunk);
    lower_ = reinterpret_cast<float*>(ptx::sharedMemory());
    inverse_ = lower_ + kRows * kSquare;
    sums_ = inverse_ + kRows * kSquare;
  }

  SEQPAR_DEVICE void steps() {
    const int keyHead = head_ / (task_.heads / task_.keyHeads);
    loadRows(task_.k, keyHead, 1, record_.k, record_.kInverse);
    loadRows(task_.q, keyHead, task_.scale, record_.q, record_.qInverse);
    loadGates();
    if (task_.training) loadOutGradients();
    ptx::syncthreads();
    decayRows();
    if (task_.width > 1) {
      decayBlocks();
      ptx::syncthreads();
      scoreBlocks();
      scoreDiagonal();
    } else {
      decaysBetweenTokens();
      ptx::syncthreads();
      scoreAll();
    }
    ptx::syncthreads();
    invert();
  }

  SEQPAR_DEVICE void loadRows(const Input& tensor, int head, float scale, float* to, float* inverses) {
    const int lane = ptx::thread() % 32;
    for (int t = ptx::thread() / 32; t < kRows; t += kWarps) {
      const bool used = t < chunk_.rows;
      const int64_t row = rowOf(tensor, batch_, chunk_.first + (used ? t : 0), head);
      float inverse = 1;
      if (task_.normalize) {
        float squares = 0;
        for (int c = lane; used && c < task_.dk; c += 32) {
          const float x = loadNumber(tensor.data, task_.type, row + c);
          squares += x * x;
        }
        inverse = 1 / sqrtf(sumOfWarp(squares) + 1e-6F);
        if (lane == 0) inverses[t] = inverse;
      }
      for (int c = lane; c < dk_; c += 32) {
        const bool inside = used && c < task_.dk;
        to[t * dk_ + c] = inside ? loadNumber(tensor.data, task_.type, row + c) * inverse * scale : 0;
      }
    }
  }

  SEQPAR_DEVICE void loadGates() {
    const int stride = task_.width > 1 ? dk_ : 1;
    for (int i = ptx::thread(); i < kRows * stride; i += kThreads) {
      const int t = i / stride, c = i % stride;
      const bool inside = t < chunk_.rows && c < task_.width;
      record_.decays[i] = inside ? expf(loadNumber(task_.gates.data, task_.gateType,
                                                   rowOf(task_.gates, batch_, chunk_.first + t, head_) + c))
                                 : 1;
    }
    for (int t = ptx::thread(); t < kRows; t += kThreads) {
      const bool used = t < chunk_.rows;
      record_.beta[t] =
          used ? loadNumber(task_.beta.data, task_.betaType, rowOf(task_.beta, batch_, chunk_.first + t, head_)) : 0;
    }
  }

  SEQPAR_DEVICE void loadOutGradients() {
    const int dv = padded(task_.dv);
    for (int i = ptx::thread(); i < kRows * dv; i += kThreads) {
      const int t = i / dv, c = i % dv;
      const bool inside = t < chunk_.rows && c < task_.dv;
      record_.dOut[i] =
          inside ? loadNumber(task_.dOut.data, task_.type, rowOf(task_.dOut, batch_, chunk_.first + t, head_) + c) : 0;
    }
  }

  SEQPAR_DEVICE float decay(int t, int c) const { return record_.decays[task_.width > 1 ? t * dk_ + c : t]; }

  SEQPAR_DEVICE void decayRows() {
    for (int c = ptx::thread(); c < dk_; c += kThreads) {
      float run = 1;
      for (int t = 0; t < kRows; ++t) {
        run *= decay(t, c);
        record_.kIn[t * dk_ + c] = forgetting(run, record_.k[t * dk_ + c]);
        record_.qIn[t * dk_ + c] = forgetting(run, record_.q[t * dk_ + c]);
      }
      record_.total[c] = run;
      run = 1;
      for (int t = kRows; t-- > 0;) {
        record_.kOut[t * dk_ + c] = forgetting(run, record_.k[t * dk_ + c]);
        run *= decay(t, c);
      }
    }
  }

  SEQPAR_DEVICE void decaysBetweenTokens() {
    for (int j = ptx::thread(); j < kRows; j += kThreads) {
      float run = 1;
      for (int i = 0; i < kRows; ++i) {
        if (i > j) run *= record_.decays[i];
        lower_[i * kSquare + j] = i < j ? 0 : run;
      }
    }
  }

  SEQPAR_DEVICE void scoreAll() {
    const auto score = [&](const float* rows, float* to, int above) {
      multiply({rowsOf(rows, dk_), transposeOf(record_.k, dk_), dk_}, kRows, kRows, exact_,
               [&](int i, int j, float value) {
                 to[i * kRows + j] = i < j + above ? 0 : forgetting(lower_[i * kSquare + j], value);
               });
    };
    score(record_.k, record_.keyScores, 1);
    score(record_.q, record_.scores, 0);
  }

  /// Keys before block n decayed to its start, and its rows decayed from there.
  SEQPAR_DEVICE void decayBlocks() {
    for (int c = ptx::thread(); c < dk_; c += kThreads) {
      for (int n = 0; n < kRows / kBlock; ++n) {
        float* const near = record_.near + n * (n - 1) / 2 * kBlock * dk_;
        float run = 1;
        for (int j = n * kBlock; j-- > 0;) {
          near[j * dk_ + c] = forgetting(run, record_.k[j * dk_ + c]);
          run *= decay(j, c);
        }
        run = 1;
        for (int i = n * kBlock; i < (n + 1) * kBlock; ++i) {
          run *= decay(i, c);
          record_.kNear[i * dk_ + c] = forgetting(run, record_.k[i * dk_ + c]);
          record_.qNear[i * dk_ + c] = forgetting(run, record_.q[i * dk_ + c]);
        }
      }
    }
  }

  SEQPAR_DEVICE void scoreBlocks() {
    for (int n = 1; n < kRows / kBlock; ++n) {
      const float* const near = record_.near + n * (n - 1) / 2 * kBlock * dk_;
      const int first = n * kBlock;
      const auto score = [&](const float* rows, float* to) {
        multiply({rowsOf(rows + first * dk_, dk_), transposeOf(near, dk_), dk_}, kBlock, first, exact_,
                 [&](int i, int j, float value) { to[(first + i) * kRows + j] = value; });
      };
      score(record_.kNear, record_.keyScores);
      score(record_.qNear, record_.scores);
    }
  }

  /// Pairs of tokens of one block: a warp per column.
  SEQPAR_DEVICE void scoreDiagonal() {
    const int lane = ptx::thread() % 32;
    for (int j = ptx::thread() / 32; j < kRows; j += kWarps) {
      const int end = (j / kBlock + 1) * kBlock;
      float ofKeys[kBlock] = {}, ofQueries[kBlock] = {};
      for (int c = lane; c < dk_; c += 32) {
        const float key = record_.k[j * dk_ + c];
        float run = 1;
        SEQPAR_UNROLL
        for (int n = 0; n < kBlock; ++n) {
          const int i = j + n;
          if (i >= end) continue;
          if (n > 0) run *= decay(i, c);
          ofKeys[n] += forgetting(run, record_.k[i * dk_ + c] * key);
          ofQueries[n] += forgetting(run, record_.q[i * dk_ + c] * key);
        }
      }
      SEQPAR_UNROLL
      for (int n = 0; n < kBlock; ++n) {
        const float forKey = sumOfWarp(ofKeys[n]), forQuery = sumOfWarp(ofQueries[n]);
        if (lane != 0 || j + n >= end) continue;
        record_.keyScores[(j + n) * kRows + j] = n == 0 ? 0 : forKey;
        record_.scores[(j + n) * kRows + j] = forQuery;
      }
      for (int i = lane; i < j; i += 32) record_.keyScores[i * kRows + j] = record_.scores[i * kRows + j] = 0;
    }
  }

  /// inverse = (I + strict(beta keyScores))^-1. An element 0 of the lower triangle forgets.
  SEQPAR_DEVICE void invert() {
    for (int i = ptx::thread(); i < kRows * kRows; i += kThreads) {
      const int row = i / kRows, column = i % kRows;
      lower_[row * kSquare + column] = row > column ? record_.beta[row] * record_.keyScores[i] : 0;
      inverse_[row * kSquare + column] = row == column ? 1 : 0;
    }
    ptx::syncthreads();
    for (int j = ptx::thread(); j < kRows; j += kThreads) {
      for (int i = j + 1; i < (j / kBlock + 1) * kBlock; ++i) {
        float sum = 0;
        for (int k = j; k < i; ++k) sum += forgetting(lower_[i * kSquare + k], inverse_[k * kSquare + j]);
        inverse_[i * kSquare + j] = -sum;
      }
    }
    ptx::syncthreads();
    for (int first = kBlock; first < kRows; first += kBlock) {
      for (int i = ptx::thread(); i < kBlock * first; i += kThreads) {
        const int row = i / first, column = i % first;
        float sum = 0;
        for (int k = column / kBlock * kBlock; k < first; ++k) {
          sum += forgetting(lower_[(first + row) * kSquare + k], inverse_[k * kSquare + column]);
        }
        sums_[row * kSquare + column] = sum;
      }
      ptx::syncthreads();
      for (int i = ptx::thread(); i < kBlock * first; i += kThreads) {
        const int row = i / first, column = i % first;
        float sum = 0;
        for (int k = 0; k <= row; ++k) {
          sum += forgetting(inverse_[(first + row) * kSquare + first + k], sums_[k * kSquare + column]);
        }
        inverse_[(first + row) * kSquare + column] = -sum;
      }
      ptx::syncthreads();
    }
    for (int i = ptx::thread(); i < kRows * kRows; i += kThreads) {
      record_.inverse[i] = inverse_[i / kRows * kSquare + i % kRows];
    }
  }

  const Task& task_;
  const int dk_;
  const bool exact_;
  int head_;
  int64_t batch_;
  Chunk chunk_;
  Record record_;
  float *lower_, *inverse_, *sums_;
};

}  // namespace seqpar::attn::delta
