// TMA tensor maps (kernels/arch/tma.h), encoded on the host.
#pragma once

#include "kernels/arch/tma.h"
#include "kernels/attn/linear/args.h"

namespace seqpar::attn::forward_sm90 {

/// A tensor [batch][token][head][columns] of 16-bit or 32-bit elements and the box of one copy: `boxColumns` of one
/// head and `boxTokens` tokens. `swizzled`: rows of 128 bytes, as in tma.h. encodeMap() returns false if the TMA does
/// not support the tensor.
struct TensorBox {
  Input tensor;
  int type = 0;  ///< a seqparDataType_t
  int columns = 0, heads = 0;
  int boxColumns = 0, boxTokens = 0;
  bool swizzled = true;
};
bool encodeMap(CUtensorMap& map, const TensorBox& box, const LinearProblem& problem);

}  // namespace seqpar::attn::forward_sm90
