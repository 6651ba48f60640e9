// Merges logarithms of sums of exponentials, with the same arithmetic on hosts and GPUs.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define SEQPAR_HOST_DEVICE_FUNCTION __host__ __device__
#else
#define SEQPAR_HOST_DEVICE_FUNCTION
#endif

namespace seqpar::attn {

/// Merge of two partial results: the merged lse, and the factors of both outputs.
struct MergeWeights {
  float lse, a, b;
};

/// `a` and `b` are the lse of the two results. A result with -inf is empty and has factor 0; if both are, the merged
/// lse is -inf.
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
