#include "support/recurrences.h"

#include <vector>

namespace seqpar::test {
namespace {

/// The decayed state, and v minus what it holds for the key.
struct Decayed {
  std::vector<double> state, error;
};

Decayed decayed(const DeltaToken& t, size_t dk, size_t dv, const double* before) {
  Decayed d{std::vector<double>(dk * dv), std::vector<double>(t.v, t.v + dv)};
  for (size_t i = 0; i < dk; ++i) {
    for (size_t e = 0; e < dv; ++e) {
      d.state[i * dv + e] = t.decay[i] == 0 ? 0 : t.decay[i] * before[i * dv + e];
      d.error[e] -= d.state[i * dv + e] * t.k[i];
    }
  }
  return d;
}

}  // namespace

void deltaStep(const DeltaToken& t, size_t dk, size_t dv, double* state, double* out) {
  const Decayed d = decayed(t, dk, dv, state);
  for (size_t e = 0; e < dv; ++e) out[e] = 0;
  for (size_t i = 0; i < dk; ++i) {
    for (size_t e = 0; e < dv; ++e) {
      state[i * dv + e] = d.state[i * dv + e] + t.beta * t.k[i] * d.error[e];
      out[e] += state[i * dv + e] * t.q[i];
    }
  }
}

void deltaStepBack(const DeltaToken& t, size_t dk, size_t dv, const double* before, const double* dOut,
                   double* gradient, DeltaTokenGradients& to) {
  const Decayed d = decayed(t, dk, dv, before);
  std::vector<double> dError(dv, 0.0);
  to.dBeta = 0;
  for (size_t i = 0; i < dk; ++i) {
    for (size_t e = 0; e < dv; ++e) {
      double& x = gradient[i * dv + e];
      to.dq[i] += (d.state[i * dv + e] + t.beta * t.k[i] * d.error[e]) * dOut[e];
      x += t.q[i] * dOut[e];
      dError[e] += t.beta * x * t.k[i];
      to.dBeta += t.k[i] * x * d.error[e];
      to.dk[i] += t.beta * x * d.error[e];
    }
  }
  for (size_t e = 0; e < dv; ++e) to.dv[e] += dError[e];
  for (size_t i = 0; i < dk; ++i) {
    for (size_t e = 0; e < dv; ++e) {
      double& x = gradient[i * dv + e];
      to.dk[i] -= d.state[i * dv + e] * dError[e];
      x -= t.k[i] * dError[e];
      to.dLogDecay[i] += x * d.state[i * dv + e];
      x = t.decay[i] == 0 ? 0 : x * t.decay[i];
    }
  }
}

}  // namespace seqpar::test
