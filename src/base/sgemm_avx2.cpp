#include <immintrin.h>

#include "base/sgemm_kernels.h"

namespace seqpar {
namespace {

struct VectorAvx2 {
  typedef float V __attribute__((vector_size(32)));
  static V set(float value) { return value - V{}; }
  static V multiplyAdd(V a, V b, V c) {
#if defined(__clang__)  // without the intrinsic, clang fuses only some of these
    return _mm256_fmadd_ps(a, b, c);
#else  // g++ fuses all of these; with the intrinsic it keeps fewer sums in registers
    return a * b + c;
#endif
  }
};

}  // namespace

constinit const SgemmKernel kSgemmAvx2 = makeSgemmKernel<VectorAvx2, 6>();

}  // namespace seqpar
