// Merging logarithms of sums of exponentials. The same arithmetic on hosts and GPUs.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define SEQPAR_HOST_DEVICE_FUNCTION __host__ __device__
#else
#define SEQPAR_HOST_DEVICE_FUNCTION
#endif

namespace seqpar::attn {

/// How two partial results become one: lse' and the factors of both outputs.
struct MergeWeights {
  float lse, a, b;
};

/// Of results with logarithms `a` and `b`. -inf: nothing was seen, the factor is 0; both: everything is 0 and lse -inf.
SEQPAR_HOST_DEVICE_FUNCTION inline MergeWeights mergeWeights(float a, float b) {
  const float least = -HUGE_VALF;
  if (b == least) return {a, a == least ? 0.0f : 1.0f, 0.0f};
  if (a == least) return {b, 0.0f, 1.0f};
  const float most = a > b ? a : b;
  const float ea = expf(a - most), eb = expf(b - most);
  const float sum = ea + eb;
  return {most + logf(sum), ea / sum, eb / sum};
}

}  // namespace seqpar::attn
