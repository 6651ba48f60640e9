#include "support/reference_linear.h"

#include <algorithm>
#include <cmath>

#include "support/recurrences.h"

namespace seqpar::test {
namespace {

/// One head of one sequence.
struct Head {
  const LinearShape& shape;
  const LinearInputs& in;
  int64_t b;
  int h;

  int64_t key(int64_t t) const {
    return ((b * shape.tokens + t) * shape.qkHeads + h / (shape.heads / shape.qkHeads)) * shape.dk;
  }
  int64_t value(int64_t t) const { return ((b * shape.tokens + t) * shape.heads + h) * shape.dv; }
  int64_t gate(int64_t t) const { return ((b * shape.tokens + t) * shape.heads + h) * shape.dk; }
  int64_t state() const { return (b * shape.heads + h) * int64_t{shape.dk} * shape.dv; }
  bool begins(int64_t t) const { return !in.begins.empty() && in.begins[t] != 0; }
  double decay(int64_t t, int i) const { return begins(t) ? 0 : std::exp(in.logDecay[gate(t) + i]); }

  DecayToken token(int64_t t, int i, const double* dOut = nullptr) const {
    return {shape.scale * in.q[key(t) + i], in.k[key(t) + i], decay(t, i), in.v.data() + value(t), dOut};
  }

  int64_t stateSize() const { return int64_t{shape.dk} * shape.dv; }
  /// The state before the first token.
  void first(double* to) const {
    if (!in.initial.empty()) std::copy_n(in.initial.begin() + state(), stateSize(), to);
  }
  void step(int64_t t, double* state) const {
    for (int i = 0; i < shape.dk; ++i) decayStep(token(t, i), shape.dv, rowOf(state, i));
  }
  /// The state before each token, and after the last one.
  std::vector<double> states() const {
    std::vector<double> all((shape.tokens + 1) * stateSize());
    first(all.data());
    for (int64_t t = 0; t < shape.tokens; ++t) {
      double* const after = all.data() + (t + 1) * stateSize();
      std::copy_n(after - stateSize(), stateSize(), after);
      step(t, after);
    }
    return all;
  }
  StateRow rowOf(double* state, int i) const { return {state + int64_t{i} * shape.dv, nullptr}; }
};

template <class Work>
void forHeads(const LinearShape& shape, const LinearInputs& inputs, const Work& work) {
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int h = 0; h < shape.heads; ++h) work(Head{shape, inputs, b, h});
  }
}

}  // namespace

LinearOutputs linearReference(const LinearShape& shape, const LinearInputs& inputs) {
  LinearOutputs result;
  result.out.assign(shape.valueSize(), 0);
  result.finalState.assign(shape.stateSize(), 0);
  forHeads(shape, inputs, [&](const Head& head) {
    double* const state = result.finalState.data() + head.state();
    head.first(state);
    for (int64_t t = 0; t < shape.tokens; ++t) {
      head.step(t, state);
      const StateRow out{result.out.data() + head.value(t), nullptr};
      for (int i = 0; i < shape.dk; ++i) decayOutput(head.token(t, i), shape.dv, head.rowOf(state, i), out);
    }
  });
  return result;
}

LinearGradients linearGradientReference(const LinearShape& shape, const LinearInputs& inputs,
                                        const std::vector<double>& dOut, const std::vector<double>& dFinal) {
  LinearGradients result;
  result.dq.assign(shape.keySize(), 0);
  result.dk.assign(shape.keySize(), 0);
  result.dv.assign(shape.valueSize(), 0);
  result.dLogDecay.assign(shape.gateSize(), 0);
  result.dInitial.assign(shape.stateSize(), 0);
  forHeads(shape, inputs, [&](const Head& head) {
    auto states = head.states();
    double* const gradient = result.dInitial.data() + head.state();  // of the state after the token
    if (!dFinal.empty()) std::copy_n(dFinal.begin() + head.state(), head.stateSize(), gradient);
    for (int64_t t = shape.tokens - 1; t >= 0; --t) {
      double* const before = states.data() + t * head.stateSize();
      for (int i = 0; i < shape.dk; ++i) {
        DecayTokenGradients own;
        own.dv.value = result.dv.data() + head.value(t);
        decayStepBack(head.token(t, i, dOut.data() + head.value(t)), shape.dv, head.rowOf(before, i),
                      head.rowOf(before + head.stateSize(), i), head.rowOf(gradient, i), own);
        result.dq[head.key(t) + i] += shape.scale * own.dq;
        result.dk[head.key(t) + i] += own.dk;
        result.dLogDecay[head.gate(t) + i] += own.dLogDecay;
      }
    }
  });
  return result;
}

}  // namespace seqpar::test
