// Conversions between the element types: to nearest, ties to even; NaN stays NaN; overflow is infinity.
#pragma once

#include <cstddef>

#include "seqpar/seqpar.h"

namespace seqpar {

/// Bytes of one element.
size_t sizeOf(seqparDataType_t type);

/// "fp32", "fp16" or "bf16".
const char* typeName(seqparDataType_t type);

void toFloat(const void* from, seqparDataType_t fromType, float* to, size_t count);
void fromFloat(const float* from, void* to, seqparDataType_t toType, size_t count);

/// Converts between any two types. A null `from` writes zeros. `from` and `to` do not overlap, except that they may be
/// equal if the types are equal.
void convert(const void* from, seqparDataType_t fromType, void* to, seqparDataType_t toType, size_t count);

}  // namespace seqpar
