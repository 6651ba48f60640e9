// Gated linear attention forward and backward through a plan, on some tokens of the text.
#pragma once

#include <chrono>
#include <ctime>
#include <vector>

#include "attention_calls.h"
#include "seqpar/attn.h"
#include "text.h"

struct Outputs {
  std::vector<float> out, dq, dk, dv, dLogDecay;
};

/// What a run took: on the clock, and of a processor. They differ where ranks wait for each other or share processors.
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
  /// `tokensOfRanks`: how many tokens each rank has. With comm nullptr there is one rank.
  Operator(const Shape& shape, const std::vector<int64_t>& tokensOfRanks, seqparComm_t comm) {
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

  /// The forward pass, and the backward pass from the gradient of the outputs.
  Time run(const Inputs& inputs, const std::vector<float>& dOut, Outputs& to) {
    for (auto* array : {&to.dq, &to.dk, &to.dLogDecay}) array->resize(inputs.q.size());
    for (auto* array : {&to.out, &to.dv}) array->resize(inputs.v.size());
    seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
    forward.q = denseTensor(inputs.q);
    forward.k = denseTensor(inputs.k);
    forward.v = denseTensor(inputs.v);
    forward.gate = denseTensor(inputs.logDecay);
    forward.out = denseTensor(to.out);
    forward.saved = saved_.data();
    seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.gate = forward.gate;
    backward.saved = saved_.data();
    backward.dOut = denseTensor(dOut);
    backward.dq = denseTensor(to.dq);
    backward.dk = denseTensor(to.dk);
    backward.dv = denseTensor(to.dv);
    backward.dGate = denseTensor(to.dLogDecay);
    const Time start = now();
    checkAttention(seqparAttnForward(plan_, &forward, nullptr));
    checkAttention(seqparAttnBackward(plan_, &backward, nullptr));
    const Time end = now();
    return {end.wall - start.wall, end.processor - start.processor};
  }

 private:
  seqparAttnPlan_t plan_ = nullptr;
  std::vector<float> saved_;
};
