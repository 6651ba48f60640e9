// The input gate: a factor b of each token's update, S_t = A_t S_(t-1) + b_t k_t v_t^T. The passes read b v instead of
// v; afterwards dv = b dv' and db = v . dv', with dv' the gradient of b v. Compiles everywhere.
#pragma once

#include "kernels/attn/linear/args.h"

namespace seqpar::attn {

struct InputGate {
  int64_t batch = 1, tokens = 0;
  int heads = 0, dv = 0;
  int type = seqparBfloat16;     ///< a seqparDataType_t: of values, products and their gradients
  int gateType = seqparFloat32;  ///< fp32 or bf16: of gates and their gradients
  Input values;                  ///< any strides and alignment, as all tensors here
  Input gates;                   ///< [batch][token][head]
};

/// products = gates values, multiplied in fp32 and rounded once.
struct GateValues {
  InputGate gate;
  Output products;
};

/// dValues, in: gradient of the products; out: of the values. The scalar products for dGates are in fp32, in a fixed
/// order.
struct GateGradients {
  InputGate gate;
  Output dValues;
  Output dGates;  ///< without data: not written
};

/// Start after all earlier work on the stream. Return a cudaError_t. Only in builds with CUDA.
int launchGateValues(const GateValues& pass, const Launch& launch);
int launchGateGradients(const GateGradients& pass, const Launch& launch);

}  // namespace seqpar::attn
