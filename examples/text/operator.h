// Gated linear attention forward and backward through a plan, on some tokens of the text.
#pragma once

#include <chrono>
#include <ctime>
#include <stdexcept>
#include <vector>

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
    check(seqparAttnPlanCreate(&plan_, &desc, comm));
    check(seqparAttnPlanPrepare(plan_, nullptr, 0));
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
    forward.q = tensor(inputs.q);
    forward.k = tensor(inputs.k);
    forward.v = tensor(inputs.v);
    forward.gate = tensor(inputs.logDecay);
    forward.out = tensor(to.out);
    forward.saved = saved_.data();
    seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.gate = forward.gate;
    backward.saved = saved_.data();
    backward.dOut = tensor(dOut);
    backward.dq = tensor(to.dq);
    backward.dk = tensor(to.dk);
    backward.dv = tensor(to.dv);
    backward.dGate = tensor(to.dLogDecay);
    const Time start = now();
    check(seqparAttnForward(plan_, &forward, nullptr));
    check(seqparAttnBackward(plan_, &backward, nullptr));
    const Time end = now();
    return {end.wall - start.wall, end.processor - start.processor};
  }

 private:
  static void check(seqparResult_t result) {
    if (result != seqparSuccess) throw std::runtime_error(seqparAttnGetLastError());
  }
  /// All strides 0: dense. The library reads what it is given as inputs, and does not write there.
  static seqparAttnTensor_t tensor(const std::vector<float>& numbers) {
    return {const_cast<float*>(numbers.data()), 0, 0, 0};
  }

  seqparAttnPlan_t plan_ = nullptr;
  std::vector<float> saved_;
};
