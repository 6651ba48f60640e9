// Conversions between the element types: to nearest, ties to even; NaN stays NaN; overflow is infinity.
#pragma once

#include <cstddef>

#include "seqpar/seqpar.h"

namespace seqpar {

[[noreturn]] void failType(seqparDataType_t type);

/// Bytes of one element. InternalError for an invalid type.
inline size_t sizeOf(seqparDataType_t type) {
  if (type == seqparFloat32) return 4;
  if (type == seqparFloat16 || type == seqparBfloat16) return 2;
  failType(type);
}

/// "fp32", "fp16" or "bf16".
const char* typeName(seqparDataType_t type);

void toFloat(const void* from, seqparDataType_t fromType, float* to, size_t count);
void fromFloat(const float* from, void* to, seqparDataType_t toType, size_t count);

/// Converts between any two types. A null `from` writes zeros. `from` and `to` do not overlap, except that they may be
/// equal if the types are equal.
void convert(const void* from, seqparDataType_t fromType, void* to, seqparDataType_t toType, size_t count);

}  // namespace seqpar
