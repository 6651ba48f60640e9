#include "support/recurrences.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "seqpar/attn_family.h"

namespace seqpar::test {
namespace {

/// A factor of 0 gives 0 for any input, NaN too.
void scale(const StateRow& row, double factor, size_t dv) {
  for (double* const each : {row.value, row.magnitude}) {
    if (each == nullptr) continue;
    if (factor == 0.0) std::fill_n(each, dv, 0.0);
#pragma omp simd
    for (size_t e = 0; e < dv; ++e) each[e] *= factor;
  }
}
void add(const StateRow& row, double factor, const double* by, size_t dv) {
#pragma omp simd
  for (size_t e = 0; e < dv; ++e) row.value[e] += factor * by[e];
  if (row.magnitude == nullptr) return;
  const double size = std::abs(factor);
#pragma omp simd
  for (size_t e = 0; e < dv; ++e) row.magnitude[e] += size * std::abs(by[e]);
}
/// sum += factor * row.
void add(const StateRow& sum, double factor, const StateRow& row, size_t dv) {
#pragma omp simd
  for (size_t e = 0; e < dv; ++e) sum.value[e] += factor * row.value[e];
  if (row.magnitude == nullptr) return;
  const double size = std::abs(factor);
#pragma omp simd
  for (size_t e = 0; e < dv; ++e) sum.magnitude[e] += size * row.magnitude[e];
}
double product(const double* a, const double* b, size_t dv) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t e = 0; e < dv; ++e) sum += a[e] * b[e];
  return sum;
}
double sizeOfProduct(const double* magnitudes, const double* b, size_t dv) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t e = 0; e < dv; ++e) sum += magnitudes[e] * std::abs(b[e]);
  return sum;
}

/// The decayed state, and v minus what it holds for the key.
struct Decayed {
  std::vector<double> state, error;
};

Decayed decayed(const HeadToken& t, size_t dk, size_t dv, const double* before) {
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

void decayStep(const DecayToken& t, size_t dv, const StateRow& state) {
  scale(state, t.decay, dv);
  add(state, t.k, t.v, dv);
}

void decayOutput(const DecayToken& t, size_t dv, const StateRow& state, const StateRow& out) {
  add(out, t.q, state, dv);
}

void decayStepBack(const DecayToken& t, size_t dv, const StateRow& before, const StateRow& after,
                   const StateRow& gradient, DecayTokenGradients& to) {
  if (gradient.magnitude != nullptr) to.boundary = product(gradient.magnitude, after.magnitude, dv);
  add(gradient, t.q, t.dOut, dv);
  to.dq = product(after.value, t.dOut, dv);
  to.dk = product(gradient.value, t.v, dv);
  if (gradient.magnitude != nullptr) {
    to.dqMagnitude = sizeOfProduct(after.magnitude, t.dOut, dv);
    to.dkMagnitude = sizeOfProduct(gradient.magnitude, t.v, dv);
  }
  add(to.dv, t.k, gradient, dv);
  to.dLogDecay = t.decay == 0.0 ? 0.0 : t.decay * product(gradient.value, before.value, dv);
  scale(gradient, t.decay, dv);
}

void deltaStep(const HeadToken& t, size_t dk, size_t dv, double* state, double* out) {
  const Decayed d = decayed(t, dk, dv, state);
  for (size_t e = 0; e < dv; ++e) out[e] = 0;
  for (size_t i = 0; i < dk; ++i) {
    for (size_t e = 0; e < dv; ++e) {
      state[i * dv + e] = d.state[i * dv + e] + t.beta * t.k[i] * d.error[e];
      out[e] += state[i * dv + e] * t.q[i];
    }
  }
}

void deltaStepBack(const HeadToken& t, size_t dk, size_t dv, const double* before, const double* dOut, double* gradient,
                   HeadTokenGradients& to) {
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

const HeadRecurrence* headRecurrence(int family) {
  static constexpr HeadRecurrence kRows[] = {{seqparAttnDelta, deltaStep, deltaStepBack},
                                             {seqparAttnGatedDelta, deltaStep, deltaStepBack},
                                             {seqparAttnKda, deltaStep, deltaStepBack}};
  for (const auto& row : kRows) {
    if (row.family == family) return &row;
  }
  return nullptr;
}

}  // namespace seqpar::test
