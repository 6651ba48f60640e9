// The last step of the backward: gradients of a chunk's tensors, from the states and gradients that Advance and Retreat
// have kept.
//
// Work      a CTA has one (chunk, head of q and k, batch entry), for all heads that share q and k
// Roles     products by all warps; running products of decays by threads of one channel each; sums over channels by
//           warps
// Tiles     chunks of 64 tokens; products in tiles of 16 x 16 (product.h)
// Smem      sharedNumbers(): decays between tokens, sums per token and per channel
// Barriers  __syncthreads() between steps
// Overlap   none
#pragma once

#include "kernels/attn/linear/delta/product.h"

namespace seqpar::attn::delta {

class Differentiate {
 public:
  SEQPAR_DEVICE static void run(const Task& task) { Differentiate(task).steps(); }

 private:
  SEQPAR_DEVICE explicit Differentiate(const Task& t)
      : task_(t), dk_(padded(t.dk)), dv_(padded(t.dv)), exact_(t.type == seqparFloat32) {
    int64_t index = ptx::block();
    number_ = static_cast<int>(index % t.count);
    index /= t.count;
    keyHead_ = static_cast<int>(index % t.keyHeads);
    batch_ = index / t.keyHeads;
    chunk_ = t.chunks[t.first + number_];
    between_ = reinterpret_cast<float*>(ptx::sharedMemory());
    ofTokens_ = between_ + kRows * kSquare;
    boundary_ = ofTokens_ + 2 * kRows;
  }

  SEQPAR_DEVICE void steps() {
    const int group = task_.heads / task_.keyHeads;
    const Record sums = recordAt(task_, batch_, keyHead_ * group, number_);
    for (int i = 0; i < group; ++i) {
      head_ = keyHead_ * group + i;
      r_ = recordAt(task_, batch_, head_, number_);
      throughStates();
      ptx::syncthreads();
      decayRows();
      ofBetas();
      ptx::syncthreads();
      if (task_.width > 1) {
        throughBlocks();
      } else {
        throughScores();
      }
      ptx::syncthreads();
      if (task_.dGates.data != nullptr) ofGates();
      ofValues();
      for (int n = ptx::thread(); n < kRows * dk_; n += kThreads) {
        const float dk = r_.dRow[n] + r_.dColumn[n];
        sums.sumQ[n] = i == 0 ? r_.dq[n] : sums.sumQ[n] + r_.dq[n];
        sums.sumK[n] = i == 0 ? dk : sums.sumK[n] + dk;
      }
      ptx::syncthreads();
    }
    finish(task_.dq, sums.sumQ, r_.q, r_.qInverse, task_.scale);
    finish(task_.dk_, sums.sumK, r_.k, r_.kInverse, 1);
  }

  SEQPAR_DEVICE float decay(int t, int c) const { return r_.decays[task_.width > 1 ? t * dk_ + c : t]; }

  /// Gradients of qIn, kIn and kOut, and of both kinds of scores.
  SEQPAR_DEVICE void throughStates() {
    multiply({rowsOf(r_.dOut, dv_), transposeOf(r_.state, dv_), dv_}, kRows, dk_, exact_,
             [&](int t, int c, float value) { r_.dq[t * dk_ + c] = value; });
    multiply({rowsOf(r_.dX, dv_), transposeOf(r_.state, dv_), dv_}, kRows, dk_, exact_,
             [&](int t, int c, float value) { r_.dRow[t * dk_ + c] = -r_.beta[t] * value; });
    multiply({rowsOf(r_.written, dv_), transposeOf(r_.dState, dv_), dv_}, kRows, dk_, exact_,
             [&](int t, int c, float value) { r_.dColumn[t * dk_ + c] = value; });
    multiply({rowsOf(r_.dOut, dv_), transposeOf(r_.written, dv_), dv_}, kRows, kRows, exact_,
             [&](int i, int j, float value) { r_.scores[i * kRows + j] = i < j ? 0 : value; });
    // (I + L)^-1 = T gives dL = -T^T (dD X^T) T^T = -dX D^T.
    multiply({rowsOf(r_.dX, dv_), transposeOf(r_.written, dv_), dv_}, kRows, kRows, exact_,
             [&](int i, int j, float value) { r_.inverse[i * kRows + j] = i <= j ? 0 : -value; });
    if (task_.width > 1) return;
    for (int j = ptx::thread(); j < kRows; j += kThreads) {
      float run = 1;
      for (int i = 0; i < kRows; ++i) {
        if (i > j) run *= r_.decays[i];
        between_[i * kSquare + j] = i < j ? 0 : run;
      }
    }
  }

  SEQPAR_DEVICE void decayRows() {
    const int lane = ptx::thread() % 32;
    for (int c = ptx::thread() / 32; c < dk_; c += kWarps) {
      float sum = 0;
      for (int v = lane; v < dv_; v += 32) sum += r_.state[c * dv_ + v] * r_.dState[c * dv_ + v];
      sum = forgetting(r_.total[c], sumOfWarp(sum));
      float atEnd = 0;
      for (int t = lane; t < kRows; t += 32) atEnd += r_.kOut[t * dk_ + c] * r_.dColumn[t * dk_ + c];
      atEnd = sumOfWarp(atEnd);
      if (lane == 0) boundary_[c] = sum + atEnd;
    }
    ptx::syncthreads();
    for (int c = ptx::thread(); c < dk_; c += kThreads) {
      float run = 1;
      for (int t = 0; t < kRows; ++t) {
        run *= decay(t, c);
        r_.dq[t * dk_ + c] = forgetting(run, r_.dq[t * dk_ + c]);
        r_.dRow[t * dk_ + c] = forgetting(run, r_.dRow[t * dk_ + c]);
      }
      run = 1;
      for (int t = kRows; t-- > 0;) {
        r_.dColumn[t * dk_ + c] = forgetting(run, r_.dColumn[t * dk_ + c]);
        run *= decay(t, c);
      }
    }
  }

  /// Then `inverse` has the gradients of keyScores.
  SEQPAR_DEVICE void ofBetas() {
    const int lane = ptx::thread() % 32;
    for (int t = ptx::thread() / 32; t < kRows; t += kWarps) {
      float sum = 0;
      for (int v = lane; v < dv_; v += 32) sum += r_.dX[t * dv_ + v] * r_.residual[t * dv_ + v];
      for (int j = lane; j < t; j += 32) {
        sum += forgetting(r_.keyScores[t * kRows + j], r_.inverse[t * kRows + j]);
        r_.inverse[t * kRows + j] *= r_.beta[t];
      }
      sum = sumOfWarp(sum);
      if (lane != 0 || t >= chunk_.rows || task_.dBeta.data == nullptr) continue;
      storeNumber(task_.dBeta.data, task_.betaType, rowOf(task_.dBeta, batch_, chunk_.first + t, head_), sum);
    }
  }

  SEQPAR_DEVICE void throughScores() {
    for (int i = ptx::thread(); i < kRows * kRows; i += kThreads) {
      const float between = between_[i / kRows * kSquare + i % kRows];
      r_.scores[i] = forgetting(between, r_.scores[i]);
      r_.inverse[i] = forgetting(between, r_.inverse[i]);
    }
    ptx::syncthreads();
    const Matrix keys = rowsOf(r_.k, dk_), queries = rowsOf(r_.q, dk_);
    multiply({rowsOf(r_.scores, kRows), keys, kRows}, kRows, dk_, exact_,
             [&](int t, int c, float value) { r_.dq[t * dk_ + c] += value; });
    multiply({rowsOf(r_.inverse, kRows), keys, kRows}, kRows, dk_, exact_,
             [&](int t, int c, float value) { r_.dRow[t * dk_ + c] += value; });
    const Factors columns[] = {{transposeOf(r_.scores, kRows), queries, kRows},
                               {transposeOf(r_.inverse, kRows), keys, kRows}};
    multiply(columns, kRows, dk_, exact_, [&](int t, int c, float value) { r_.dColumn[t * dk_ + c] += value; });
  }

  /// Decays per channel: products between blocks, pairs within them.
  SEQPAR_DEVICE void throughBlocks() {
    for (int n = 1; n < kRows / kBlock; ++n) {
      const int first = n * kBlock;
      const float* const near = nearOf(n);
      const auto rows = [&](const float* gradients, float* to) {
        multiply({rowsOf(gradients + first * kRows, kRows), rowsOf(near, dk_), first}, kBlock, dk_, exact_,
                 [&](int t, int c, float value) { to[(first + t) * dk_ + c] = value; });
      };
      rows(r_.scores, r_.qIn);
      rows(r_.inverse, r_.kIn);
    }
    ptx::syncthreads();
    for (int n = 1; n < kRows / kBlock; ++n) {
      const int first = n * kBlock;
      float* const near = nearOf(n);
      const Factors columns[] = {
          {transposeOf(r_.scores + first * kRows, kRows), rowsOf(r_.qNear + first * dk_, dk_), kBlock},
          {transposeOf(r_.inverse + first * kRows, kRows), rowsOf(r_.kNear + first * dk_, dk_), kBlock}};
      multiply(columns, first, dk_, exact_, [&](int t, int c, float value) { near[t * dk_ + c] = value; });
    }
    ptx::syncthreads();
    for (int c = ptx::thread(); c < dk_; c += kThreads) {
      for (int n = 1; n < kRows / kBlock; ++n) {
        const float* const near = nearOf(n);
        float run = 1;
        for (int t = n * kBlock; t < (n + 1) * kBlock; ++t) {
          run *= decay(t, c);
          r_.dq[t * dk_ + c] += forgetting(run, r_.qIn[t * dk_ + c]);
          r_.dRow[t * dk_ + c] += forgetting(run, r_.kIn[t * dk_ + c]);
        }
        run = 1;
        for (int t = n * kBlock; t-- > 0;) {
          r_.dColumn[t * dk_ + c] += forgetting(run, near[t * dk_ + c]);
          run *= decay(t, c);
        }
      }
    }
    ptx::syncthreads();
    for (int i = ptx::thread(); i < kRows / kBlock * dk_; i += kThreads) withinBlock(i / dk_ * kBlock, i % dk_);
  }
  SEQPAR_DEVICE float* nearOf(int n) const { return r_.near + n * (n - 1) / 2 * kBlock * dk_; }

  SEQPAR_DEVICE void withinBlock(int first, int c) {
    float ofRows[kBlock] = {}, ofQueries[kBlock] = {};
    SEQPAR_ROLLED
    for (int j = 0; j < kBlock; ++j) {
      const float key = r_.k[(first + j) * dk_ + c];
      float run = 1, column = 0;
      SEQPAR_UNROLL
      for (int i = 0; i < kBlock; ++i) {
        if (i < j) continue;
        const int t = first + i;
        if (i > j) run *= decay(t, c);
        if (run == 0) continue;
        const float ofScore = r_.scores[t * kRows + first + j] * run;
        const float ofKey = r_.inverse[t * kRows + first + j] * run;
        ofQueries[i] += ofScore * key;
        ofRows[i] += ofKey * key;
        column += ofScore * r_.q[t * dk_ + c] + ofKey * r_.k[t * dk_ + c];
      }
      r_.dColumn[(first + j) * dk_ + c] += column;
    }
    SEQPAR_UNROLL
    for (int i = 0; i < kBlock; ++i) {
      r_.dq[(first + i) * dk_ + c] += ofQueries[i];
      r_.dRow[(first + i) * dk_ + c] += ofRows[i];
    }
  }

  /// The term of a token and channel in the gradients of the decays up to the token.
  SEQPAR_DEVICE float termOfGate(int at) const {
    return r_.q[at] * r_.dq[at] + r_.k[at] * (r_.dRow[at] - r_.dColumn[at]);
  }

  SEQPAR_DEVICE void ofGates() {
    if (task_.width > 1) {
      for (int c = ptx::thread(); c < task_.dk; c += kThreads) {
        float run = boundary_[c];
        for (int t = kRows; t-- > 0;) {
          run += termOfGate(t * dk_ + c);
          storeGate(t, c, run);
        }
      }
      return;
    }
    const int lane = ptx::thread() % 32;
    for (int t = ptx::thread() / 32; t < kRows; t += kWarps) {
      float sum = 0;
      for (int c = lane; c < dk_; c += 32) sum += termOfGate(t * dk_ + c);
      sum = sumOfWarp(sum);
      if (lane == 0) ofTokens_[t] = sum;
    }
    ptx::syncthreads();
    if (ptx::thread() != 0) return;
    float run = 0;
    for (int c = 0; c < dk_; ++c) run += boundary_[c];
    for (int t = kRows; t-- > 0;) {
      run += ofTokens_[t];
      storeGate(t, 0, run);
    }
  }
  /// A decay of 0 has a gradient of 0, and separates later tokens from earlier ones.
  SEQPAR_DEVICE void storeGate(int t, int c, float& run) {
    if (decay(t, c) == 0) run = 0;
    if (t >= chunk_.rows) return;
    storeNumber(task_.dGates.data, task_.gateType, rowOf(task_.dGates, batch_, chunk_.first + t, head_) + c, run);
  }

  SEQPAR_DEVICE void ofValues() {
    for (int i = ptx::thread(); i < chunk_.rows * task_.dv; i += kThreads) {
      const int t = i / task_.dv, v = i % task_.dv;
      const int64_t row = rowOf(task_.dv_, batch_, chunk_.first + t, head_);
      storeNumber(task_.dv_.data, task_.type, row + v, r_.beta[t] * r_.dX[t * dv_ + v]);
    }
  }

  /// The gradients of a tensor's rows from those of scaled and normalized ones, y.
  SEQPAR_DEVICE void finish(const Output& to, const float* gradients, const float* y, const float* inverses,
                            float scale) {
    const int lane = ptx::thread() % 32;
    for (int t = ptx::thread() / 32; t < chunk_.rows; t += kWarps) {
      const float* const dy = gradients + t * dk_;
      float along = 0, inverse = 1;
      if (task_.normalize) {
        for (int c = lane; c < task_.dk; c += 32) along += y[t * dk_ + c] * dy[c];
        along = scale == 0 ? 0 : sumOfWarp(along) / (scale * scale);
        inverse = inverses[t];
      }
      const int64_t row = rowOf(to, batch_, chunk_.first + t, keyHead_);
      for (int c = lane; c < task_.dk; c += 32) {
        const float across = task_.normalize ? dy[c] - y[t * dk_ + c] * along : dy[c];
        storeNumber(to.data, task_.type, row + c, scale * inverse * across);
      }
    }
  }

  const Task& task_;
  const int dk_, dv_;
  const bool exact_;
  int number_, keyHead_, head_ = 0;
  int64_t batch_;
  Chunk chunk_;
  Record r_;
  float *between_, *ofTokens_, *boundary_;
};

}  // namespace seqpar::attn::delta
