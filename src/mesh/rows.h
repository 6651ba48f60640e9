// Merges two partial results of one block: the arithmetic of a send step.
#pragma once

#include <cstddef>

#include "seqpar/seqpar.h"

namespace seqpar {

/// Element types of partial results in memory (`data`) and on the wire. `wire` is `data`, or any type if `data` is
/// fp32.
struct PartialTypes {
  seqparDataType_t data = seqparFloat32;
  seqparDataType_t wire = seqparFloat32;
};

/// Outputs with their log-sum-exps: o [tokens][heads][dim], lse [heads][tokens].
struct OutputShape {
  size_t tokens = 0, heads = 0, dim = 0;
  size_t elements() const { return tokens * heads * dim; }
  size_t rows() const { return tokens * heads; }
};

/// Merges carry (of types.wire) into o and its lse. o is converted to `result`: types.data, or types.wire at the start
/// of the same memory. With a null carry, nothing is merged.
void mergeOutputs(void* o, float* lse, const void* carry, const float* carryLse, const OutputShape& shape,
                  PartialTypes types, seqparDataType_t result);

/// Adds carry (of types.wire) to data [count]; `result` and a null carry as in mergeOutputs().
void addSums(void* data, const void* carry, size_t count, PartialTypes types, seqparDataType_t result);

}  // namespace seqpar
