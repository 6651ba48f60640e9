// The recurrence of the delta rule and its adjoint in fp64, one token of one head at a time: S is [dk][dv].
#pragma once

#include <cstddef>

namespace seqpar::test {

/// Inputs of a token: q (scaled) and k (as the rule uses them) [dk], v [dv], decays [dk], beta.
struct DeltaToken {
  const double *q, *k, *v, *decay;
  double beta;
};

/// Gradients, added to: of q, k, v and of the logarithms of the decays; `dBeta` is set.
struct DeltaTokenGradients {
  double *dq, *dk, *dv, *dLogDecay;
  double dBeta;
};

/// S = (I - beta k k^T) diag(decay) S + beta k v^T; out[dv] = S^T q. A decay of 0 discards its row, NaN included.
void deltaStep(const DeltaToken& token, size_t dk, size_t dv, double* state, double* out);

/// `before`: S before the token. gradient: that of S after the token, in; that of S before it, out. dOut: of out.
void deltaStepBack(const DeltaToken& token, size_t dk, size_t dv, const double* before, const double* dOut,
                   double* gradient, DeltaTokenGradients& to);

}  // namespace seqpar::test
