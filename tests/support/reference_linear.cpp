#include "support/reference_linear.h"

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

  /// states[t + 1] is the state after token t.
  std::vector<std::vector<double>> states() const {
    std::vector<std::vector<double>> all(1, std::vector<double>(int64_t{shape.dk} * shape.dv));
    if (!in.initial.empty()) all[0].assign(in.initial.begin() + state(), in.initial.begin() + state() + all[0].size());
    for (int64_t t = 0; t < shape.tokens; ++t) {
      all.push_back(all.back());
      for (int i = 0; i < shape.dk; ++i) decayStep(token(t, i), shape.dv, rowOf(all.back(), i));
    }
    return all;
  }
  StateRow rowOf(std::vector<double>& state, int i) const { return {state.data() + int64_t{i} * shape.dv, nullptr}; }
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
    auto states = head.states();
    for (int64_t t = 0; t < shape.tokens; ++t) {
      const StateRow out{result.out.data() + head.value(t), nullptr};
      for (int i = 0; i < shape.dk; ++i) decayOutput(head.token(t, i), shape.dv, head.rowOf(states[t + 1], i), out);
    }
    std::copy(states.back().begin(), states.back().end(), result.finalState.begin() + head.state());
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
    std::vector<double> gradient(int64_t{shape.dk} * shape.dv);  // of the state after the token
    if (!dFinal.empty())
      gradient.assign(dFinal.begin() + head.state(), dFinal.begin() + head.state() + gradient.size());
    for (int64_t t = shape.tokens - 1; t >= 0; --t) {
      for (int i = 0; i < shape.dk; ++i) {
        DecayTokenGradients own;
        own.dv.value = result.dv.data() + head.value(t);
        decayStepBack(head.token(t, i, dOut.data() + head.value(t)), shape.dv, head.rowOf(states[t], i),
                      head.rowOf(states[t + 1], i), head.rowOf(gradient, i), own);
        result.dq[head.key(t) + i] += shape.scale * own.dq;
        result.dk[head.key(t) + i] += own.dk;
        result.dLogDecay[head.gate(t) + i] += own.dLogDecay;
      }
    }
    std::copy(gradient.begin(), gradient.end(), result.dInitial.begin() + head.state());
  });
  return result;
}

}  // namespace seqpar::test
