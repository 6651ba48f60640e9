// Linear attention and its gradients in fp64, token by token, from the definition in kernels/attn/linear/args.h.
#pragma once

#include <cstdint>
#include <vector>

namespace seqpar::test {

/// Tensors are dense: q, k [batch][tokens][qkHeads][dk], v [batch][tokens][heads][dv], states [batch][heads][dk][dv].
struct LinearShape {
  int64_t batch = 1, tokens = 0;
  int heads = 1, qkHeads = 1, dk = 16, dv = 16;
  double scale = 1;
  int64_t stateSize() const { return batch * heads * int64_t{dk} * dv; }
  int64_t keySize() const { return batch * tokens * qkHeads * dk; }
  int64_t valueSize() const { return batch * tokens * heads * dv; }
  int64_t gateSize() const { return batch * tokens * heads * dk; }
};

struct LinearInputs {
  std::vector<double> q, k, v;
  std::vector<double> logDecay;  ///< [batch][tokens][heads][dk], for every kind of gate
  std::vector<double> initial;   ///< empty: 0
  std::vector<uint8_t> begins;   ///< [tokens]: the state before the token is 0; empty: nowhere
};

struct LinearOutputs {
  std::vector<double> out, finalState;
};
LinearOutputs linearReference(const LinearShape& shape, const LinearInputs& inputs);

struct LinearGradients {
  std::vector<double> dq, dk, dv;
  std::vector<double> dLogDecay;  ///< of each channel; 0 where the decay is 0
  std::vector<double> dInitial;
};
/// dFinal: the gradient of the final state; empty: 0.
LinearGradients linearGradientReference(const LinearShape& shape, const LinearInputs& inputs,
                                        const std::vector<double>& dOut, const std::vector<double>& dFinal);

}  // namespace seqpar::test
