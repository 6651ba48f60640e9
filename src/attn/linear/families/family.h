// The families of linear attention: the transition A in S_t = A_t S_(t-1) + k_t v_t^T, and the All-Scan operator of
// each.
#pragma once

#include "attn/exec/tensor.h"
#include "seqpar/attn_plan.h"

namespace seqpar::attn::linear {

/// The shape of a family's log-decays.
enum class GateShape {
  None,       ///< all decays are 1
  OfHead,     ///< [heads], fp32
  OfToken,    ///< [batch][tokens][heads]
  OfChannel,  ///< [batch][tokens][heads][headDim]
};

struct Family {
  seqparAttnFamily_t id;
  const char* name;
  const char* paper;
  seqparScanOp_t scan;
  GateShape gate;
};

/// The family with this id; null if it is not a linear attention family.
const Family* findFamily(int id);

/// Decay values per head of a state: headDim or 1.
inline int64_t decayWidth(const Family& family, int64_t headDim) {
  return family.gate == GateShape::OfChannel ? headDim : 1;
}

/// The gate, or its gradient, as a tensor with the width as its last dimension; strides that are all 0 mean dense.
Tensor gateTensor(const Family& family, const seqparAttnTensor_t& given, seqparDataType_t type, int64_t batch,
                  int64_t tokens, int64_t heads, int64_t headDim);

}  // namespace seqpar::attn::linear
