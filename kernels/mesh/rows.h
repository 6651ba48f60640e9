// Combines partial results of one block from two sides, on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "seqpar/types.h"

namespace seqpar {

/// Partial results of one block from two sides.
struct CombineRows {
  void* out;  ///< of type `result`; may be `data` if the types agree
  const void* data;
  const void* carry;      ///< null: nothing is combined
  const float* lse;       ///< null: the two are added
  const float* carryLse;  ///< [heads][tokens], as lse
  std::size_t count;      ///< elements
  std::size_t tokens, heads, dim;
  seqparDataType_t dataType, wireType, result;
};

/// out = data, or data + carry, or the two merged by lse and carryLse; lse is unchanged.
cudaError_t launchCombineRows(const CombineRows& args, cudaStream_t stream);
/// lse = merged lse.
cudaError_t launchMergeLse(float* lse, const float* carryLse, std::size_t rows, cudaStream_t stream);

}  // namespace seqpar
