// Gated linear attention forward and backward through a plan, on some tokens of the text.
#pragma once

#include <chrono>
#include <ctime>
#include <vector>

#include "attention_calls.h"
#include "memory.h"
#include "seqpar/attn.h"
#include "text.h"

struct Outputs {
  std::vector<float> out, dq, dk, dv, dLogDecay;
};

/// Wall time and processor time of a run. They differ if ranks wait for each other or share processors.
struct Time {
  double wall = 0, processor = 0;  // ms
};

inline Time now() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double, std::milli>(wall).count(),
          static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) * 1e-6};
}

class Operator {
 public:
  /// `tokensOfRanks`: tokens per rank. comm nullptr: one rank, on the host; `device` is the communicator's.
  Operator(const Shape& shape, const std::vector<int64_t>& tokensOfRanks, seqparComm_t comm,
           int device = SEQPAR_HOST_DEVICE)
      : memory_(device) {
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.family = seqparAttnGla;
    desc.tokensOfRanks = tokensOfRanks.data();
    desc.heads = static_cast<int64_t>(shape.heads);
    desc.headDim = static_cast<int64_t>(shape.dk);
    desc.valueDim = static_cast<int64_t>(shape.dv);
    checkAttention(seqparAttnPlanCreate(&plan_, &desc, comm));
    checkAttention(seqparAttnPlanPrepare(plan_, nullptr, 0));
    saved_.resize(shape.heads * shape.dk * shape.dv);
  }
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;
  ~Operator() { seqparAttnPlanDestroy(plan_); }

  /// Inputs and results of run(). Allocates the results in `to`, which must not move until fetch().
  void place(const Inputs& inputs, const std::vector<float>& dOut, Outputs& to) {
    for (auto* array : {&to.dq, &to.dk, &to.dLogDecay}) array->resize(inputs.q.size());
    for (auto* array : {&to.out, &to.dv}) array->resize(inputs.v.size());
    const auto dense = [&](const std::vector<float>& numbers) {
      return seqparAttnTensor_t{memory_.place(numbers), 0, 0, 0};
    };
    forward_ = SEQPAR_ATTN_FORWARD_INITIALIZER;
    forward_.q = dense(inputs.q);
    forward_.k = dense(inputs.k);
    forward_.v = dense(inputs.v);
    forward_.gates[0] = dense(inputs.logDecay);
    forward_.out = dense(to.out);
    forward_.saved = memory_.place(saved_);
    backward_ = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    backward_.q = forward_.q;
    backward_.k = forward_.k;
    backward_.v = forward_.v;
    backward_.gates[0] = forward_.gates[0];
    backward_.saved = forward_.saved;
    backward_.dOut = dense(dOut);
    backward_.dq = dense(to.dq);
    backward_.dk = dense(to.dk);
    backward_.dv = dense(to.dv);
    backward_.dGates[0] = dense(to.dLogDecay);
  }
  /// The forward pass, and the backward pass with the gradient of the outputs.
  Time run() {
    const Time start = now();
    checkAttention(seqparAttnForward(plan_, &forward_, memory_.stream()));
    checkAttention(seqparAttnBackward(plan_, &backward_, memory_.stream()));
    memory_.synchronize();
    const Time end = now();
    return {end.wall - start.wall, end.processor - start.processor};
  }
  void fetch(Outputs& to) const {
    for (auto* array : {&to.out, &to.dq, &to.dk, &to.dv, &to.dLogDecay}) memory_.fetch(*array);
  }

 private:
  Memory memory_;
  seqparAttnPlan_t plan_ = nullptr;
  std::vector<float> saved_;
  seqparAttnForwardArgs_t forward_;
  seqparAttnBackwardArgs_t backward_;
};
