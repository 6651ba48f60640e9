// The recurrences of the families and their adjoints in fp64. Decay families: one token and one row of a head's state
// at a time, since rows are independent. Other families: one token of one head, S is [dk][dv].
#pragma once

#include <cstddef>

namespace seqpar::test {

/// [dv] values, with the sums of the magnitudes of their terms; a null `magnitude`: not counted, for all rows of a
/// call.
struct StateRow {
  double *value, *magnitude;
};

/// Inputs of a token for one row of the state: q (scaled), k, the decay, v and the gradient of out [dv].
struct DecayToken {
  double q, k, decay;
  const double *v, *dOut;
};

/// Of one token and row. `dv` is added to; the others are set. `boundary`: the product of the magnitudes of the state
/// and of its gradient.
struct DecayTokenGradients {
  double dq = 0, dk = 0, dLogDecay = 0, dqMagnitude = 0, dkMagnitude = 0, boundary = 0;
  StateRow dv{};
};

/// S = decay S + k v. A decay of 0 discards S, NaN included.
void decayStep(const DecayToken& token, size_t dv, const StateRow& state);
/// out += q S, for S after the token.
void decayOutput(const DecayToken& token, size_t dv, const StateRow& state, const StateRow& out);
/// `before`, `after`: S before and after the token. gradient: that of S after the token, in; that of S before it, out.
void decayStepBack(const DecayToken& token, size_t dv, const StateRow& before, const StateRow& after,
                   const StateRow& gradient, DecayTokenGradients& to);

/// Inputs of a token: q (scaled) and k (as the rule uses them) [dk], v [dv], decays [dk], beta.
struct HeadToken {
  const double *q, *k, *v, *decay;
  double beta;
};

/// Gradients, added to: of q, k, v and of the logarithms of the decays; `dBeta` is set.
struct HeadTokenGradients {
  double *dq, *dk, *dv, *dLogDecay;
  double dBeta;
};

/// S = (I - beta k k^T) diag(decay) S + beta k v^T; out[dv] = S^T q. A decay of 0 discards its row, NaN included.
void deltaStep(const HeadToken& token, size_t dk, size_t dv, double* state, double* out);

/// `before`: S before the token. gradient: that of S after the token, in; that of S before it, out. dOut: of out.
void deltaStepBack(const HeadToken& token, size_t dk, size_t dv, const double* before, const double* dOut,
                   double* gradient, HeadTokenGradients& to);

/// The functions of a family with rows that depend on each other.
struct HeadRecurrence {
  int family;
  decltype(&deltaStep) step;
  decltype(&deltaStepBack) stepBack;
};
/// nullptr: a family of decays.
const HeadRecurrence* headRecurrence(int family);

}  // namespace seqpar::test
