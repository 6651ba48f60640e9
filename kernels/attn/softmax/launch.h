// The launches of softmax attention's own kernels. All enqueue on the stream and check nothing but the launch: they
// return what CUDA says of it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attn/softmax/args.h"

namespace seqpar::attn::softmax {

/// The largest head dimension that the band kernels can do.
constexpr int64_t kMostBandDim = 256;

/// Load the kernels on the current device and raise their limits of shared memory, before the first launch on it: a
/// kernel that is loaded later may wait for the device, where another rank's kernel waits for this one.
cudaError_t prepareBandKernels();
cudaError_t prepareCombineKernels();

/// FlashAttention-2 (arXiv 2307.08691), Algorithm 1, in fp32 arithmetic.
cudaError_t launchBandForward(const BandProblem& problem, cudaStream_t stream);
/// Algorithm 2 there, in two passes, so that no two thread blocks add to the same number: first dq, then dk and dv.
cudaError_t launchBandQueries(const BandProblem& problem, cudaStream_t stream);
cudaError_t launchBandKeys(const BandProblem& problem, cudaStream_t stream);

cudaError_t launchMerge(const Merge& merge, cudaStream_t stream);
cudaError_t launchSum(const Sum& sum, cudaStream_t stream);

/// delta = rowsum(a * b).
cudaError_t launchDelta(const View& a, const View& b, const RowView& delta, int64_t batch, int64_t tokens,
                        int64_t heads, int64_t dim, cudaStream_t stream);

/// dSinks[heads] = -sum over batch and tokens of exp(sinks - lse) delta, in a fixed order.
cudaError_t launchSinkGradient(const float* sinks, const RowView& lse, const RowView& delta, float* dSinks,
                               int64_t batch, int64_t tokens, int64_t heads, cudaStream_t stream);

/// to = from, in which `from` with data null stands for `value`.
cudaError_t launchRows(const RowView& to, const RowView& from, float value, int64_t batch, int64_t tokens,
                       int64_t heads, cudaStream_t stream);

}  // namespace seqpar::attn::softmax
