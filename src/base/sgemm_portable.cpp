#include "base/sgemm_kernels.h"

namespace seqpar {
namespace {

struct VectorPortable {
  typedef float V __attribute__((vector_size(16)));
  static V set(float value) { return value - V{}; }
  static V multiplyAdd(V a, V b, V c) { return a * b + c; }
};

}  // namespace

constinit const SgemmKernel kSgemmPortable = makeSgemmKernel<VectorPortable, 4>();

}  // namespace seqpar
