// Softmax attention forward and backward through a plan, on a rank's tokens of the text.
#pragma once

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention_calls.h"
#include "seqpar/attn.h"
#include "text.h"

struct SoftmaxResults {
  std::vector<float> out, lse, dq, dk, dv;
};

class SoftmaxOperator {
 public:
  SoftmaxOperator(const Shape& shape, int64_t tokens, int algorithm, seqparComm_t comm) : shape_(shape) {
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.algorithm = algorithm;
    desc.tokens = tokens;
    desc.heads = static_cast<int64_t>(shape.heads);
    desc.headDim = static_cast<int64_t>(shape.dk);
    desc.mask = seqparAttnCausal;
    const auto result = seqparAttnPlanCreate(&plan_, &desc, comm);
    if (result == seqparInvalidUsage) {  // equal on every rank: the algorithm does not support this
      refusal_ = seqparAttnGetLastError();
      return;
    }
    checkAttention(result);
    checkAttention(seqparAttnPlanPrepare(plan_, nullptr, 0));
    int64_t local = 0;
    checkAttention(seqparAttnPlanLayout(plan_, &layout_, &local));
    int rank = 0;
    if (seqparCommUserRank(comm, &rank) != seqparSuccess) throw std::runtime_error(seqparGetLastError(comm));
    positions_.resize(static_cast<size_t>(local));
    if (seqparLayoutGlobals(&layout_, rank, positions_.data()) != seqparSuccess) {
      throw std::runtime_error(seqparGetLastError(nullptr));
    }
  }
  SoftmaxOperator(const SoftmaxOperator&) = delete;
  SoftmaxOperator& operator=(const SoftmaxOperator&) = delete;
  ~SoftmaxOperator() { seqparAttnPlanDestroy(plan_); }

  /// The reason if there is no plan; empty if there is one.
  const std::string& refusal() const { return refusal_; }
  /// This rank's tokens in the text, in the plan's order.
  const std::vector<int64_t>& positions() const { return positions_; }
  const char* layoutName() const {
    constexpr const char* kNames[] = {"contiguous", "zigzag", "striped"};
    return kNames[layout_.kind];
  }
  /// Traffic of the algorithm, from the plan's explanation.
  double bytesSent(const std::string& algorithm) const {
    size_t length = 0;
    checkAttention(seqparAttnPlanExplain(plan_, nullptr, &length));
    std::string text(length, '\0');
    checkAttention(seqparAttnPlanExplain(plan_, text.data(), &length));
    const size_t entry = text.find("{\"algorithm\": \"" + algorithm + "\"", text.find("\"candidates\""));
    const std::string key = "\"bytesSent\": ";
    const size_t at = entry == std::string::npos ? entry : text.find(key, entry);
    return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + key.size(), nullptr);
  }

  /// Milliseconds of the forward and of the backward pass.
  std::pair<double, double> run(const Inputs& inputs, const std::vector<float>& dOut, SoftmaxResults& to) {
    for (auto* array : {&to.out, &to.dq, &to.dk, &to.dv}) array->resize(inputs.q.size());
    to.lse.resize(positions_.size() * shape_.heads);
    seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
    forward.q = denseTensor(inputs.q);
    forward.k = denseTensor(inputs.k);
    forward.v = denseTensor(inputs.v);
    forward.out = denseTensor(to.out);
    forward.lse = to.lse.data();
    seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.out = forward.out;
    backward.lse = forward.lse;
    backward.dOut = denseTensor(dOut);
    backward.dq = denseTensor(to.dq);
    backward.dk = denseTensor(to.dk);
    backward.dv = denseTensor(to.dv);
    const auto begin = std::chrono::steady_clock::now();
    checkAttention(seqparAttnForward(plan_, &forward, nullptr));
    const auto middle = std::chrono::steady_clock::now();
    checkAttention(seqparAttnBackward(plan_, &backward, nullptr));
    const auto end = std::chrono::steady_clock::now();
    const auto ms = [](auto time) { return std::chrono::duration<double, std::milli>(time).count(); };
    return {ms(middle - begin), ms(end - middle)};
  }

 private:
  Shape shape_;
  seqparAttnPlan_t plan_ = nullptr;
  seqparLayout_t layout_ = SEQPAR_LAYOUT_INITIALIZER;
  std::vector<int64_t> positions_;
  std::string refusal_;
};
