#include "base/convert.h"

#include <cstring>

#include "base/convert_kernels.h"
#include "base/error.h"
#include "base/simd.h"

namespace seqpar {

const ConvertKernels& convertKernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) return kConvertAvx512;
  if (isa == Isa::Avx2) return kConvertAvx2;
#endif
  static_cast<void>(isa);
  return kConvertPortable;
}

void failType(seqparDataType_t type) {
  fail(seqparInternalError, "sizeOf: type is ", static_cast<int>(type), ", expected a seqparDataType_t");
}

const char* typeName(seqparDataType_t type) {
  switch (type) {
    case seqparFloat32:
      return "fp32";
    case seqparFloat16:
      return "fp16";
    case seqparBfloat16:
      return "bf16";
  }
  fail(seqparInternalError, "typeName: type is ", static_cast<int>(type), ", expected a seqparDataType_t");
}

void toFloat(const void* from, seqparDataType_t fromType, float* to, size_t count) {
  convert(from, fromType, to, seqparFloat32, count);
}

void fromFloat(const float* from, void* to, seqparDataType_t toType, size_t count) {
  convert(from, seqparFloat32, to, toType, count);
}

void convert(const void* from, seqparDataType_t fromType, void* to, seqparDataType_t toType, size_t count) {
  const size_t bytes = count * sizeOf(toType);
  if (bytes == 0) return;
  if (from == nullptr) {
    std::memset(to, 0, bytes);
  } else if (fromType != toType) {
    static const ConvertKernels& kernels = convertKernels(bestIsa());
    kernels.kernel[fromType][toType](from, to, count);
  } else if (from != to) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace seqpar
