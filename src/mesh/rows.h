// Partial results of one block from two sides, made into one: the arithmetic of a send step.
#pragma once

#include <cstddef>

#include "seqpar/seqpar.h"

namespace seqpar {

/// How partial results are held and how they travel. `wire` is `data`, or any type where `data` is fp32.
struct PartialTypes {
  seqparDataType_t data = seqparFloat32;
  seqparDataType_t wire = seqparFloat32;
};

/// Outputs with their logarithms: o [tokens][heads][dim], lse [heads][tokens].
struct OutputShape {
  size_t tokens = 0, heads = 0, dim = 0;
  size_t elements() const { return tokens * heads * dim; }
  size_t rows() const { return tokens * heads; }
};

/// Merges carry (of types.wire) into o and its lse. o becomes `result`: types.data, or types.wire at the beginning of
/// its own memory. With carry null nothing is merged.
void mergeOutputs(void* o, float* lse, const void* carry, const float* carryLse, const OutputShape& shape,
                  PartialTypes types, seqparDataType_t result);

/// Adds carry (of types.wire) to data [count]; `result` and null as above.
void addSums(void* data, const void* carry, size_t count, PartialTypes types, seqparDataType_t result);

}  // namespace seqpar
