#include <immintrin.h>

#include "base/sgemm_kernels.h"

namespace seqpar {
namespace {

struct VectorAvx512 {
  typedef float V __attribute__((vector_size(64)));
  static V set(float value) { return value - V{}; }
  static V multiplyAdd(V a, V b, V c) {
#if defined(__clang__)  // without the intrinsic, clang fuses only some of these
    return _mm512_fmadd_ps(a, b, c);
#else  // g++ fuses all of these; with the intrinsic it keeps fewer sums in registers
    return a * b + c;
#endif
  }
};

}  // namespace

constinit const SgemmKernel kSgemmAvx512 = makeSgemmKernel<VectorAvx512, 12>();

}  // namespace seqpar
