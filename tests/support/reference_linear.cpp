#include "support/reference_linear.h"

#include <cmath>

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

  /// states[t + 1] is the state after token t.
  std::vector<std::vector<double>> states() const {
    std::vector<std::vector<double>> all(shape.tokens + 1, std::vector<double>(int64_t{shape.dk} * shape.dv));
    if (!in.initial.empty()) all[0].assign(in.initial.begin() + state(), in.initial.begin() + state() + all[0].size());
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int i = 0; i < shape.dk; ++i) {
        const double a = decay(t, i);
        for (int j = 0; j < shape.dv; ++j) {
          const int64_t e = int64_t{i} * shape.dv + j;
          all[t + 1][e] = (a == 0 ? 0 : a * all[t][e]) + in.k[key(t) + i] * in.v[value(t) + j];
        }
      }
    }
    return all;
  }
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
    const auto states = head.states();
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int i = 0; i < shape.dk; ++i) {
        for (int j = 0; j < shape.dv; ++j) {
          result.out[head.value(t) + j] +=
              shape.scale * inputs.q[head.key(t) + i] * states[t + 1][int64_t{i} * shape.dv + j];
        }
      }
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
    const auto states = head.states();
    std::vector<double> gradient(int64_t{shape.dk} * shape.dv);  // of the state after the token
    if (!dFinal.empty())
      gradient.assign(dFinal.begin() + head.state(), dFinal.begin() + head.state() + gradient.size());
    for (int64_t t = shape.tokens - 1; t >= 0; --t) {
      const int64_t key = head.key(t), value = head.value(t);
      for (int i = 0; i < shape.dk; ++i) {
        const double a = head.decay(t, i);
        for (int j = 0; j < shape.dv; ++j) {
          const int64_t e = int64_t{i} * shape.dv + j;
          result.dq[key + i] += shape.scale * states[t + 1][e] * dOut[value + j];
          gradient[e] += shape.scale * inputs.q[key + i] * dOut[value + j];
          result.dk[key + i] += gradient[e] * inputs.v[value + j];
          result.dv[value + j] += gradient[e] * inputs.k[key + i];
          if (a != 0) result.dLogDecay[head.gate(t) + i] += a * states[t][e] * gradient[e];
          gradient[e] *= a;
        }
      }
    }
    std::copy(gradient.begin(), gradient.end(), result.dInitial.begin() + head.state());
  });
  return result;
}

}  // namespace seqpar::test
