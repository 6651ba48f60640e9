// Launches of the built-in softmax attention kernels. All enqueue on the stream, check only the launch, and return
// CUDA's result.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attn/softmax/args.h"

namespace seqpar::attn::softmax {

/// The largest head dimension that the band kernels support.
constexpr int64_t kMostBandDim = 256;

/// Load the kernels on the current device and raise their shared memory limits. Call before the first launch on the
/// device: loading a kernel later may wait for the device, and a kernel of another rank there may be waiting for this
/// one.
cudaError_t prepareBandKernels();
cudaError_t prepareCombineKernels();

/// FlashAttention-2 (arXiv 2307.08691), Algorithm 1, in fp32 arithmetic.
cudaError_t launchBandForward(const BandProblem& problem, cudaStream_t stream);
/// Algorithm 2 of that paper, in two passes, so no two thread blocks add to the same element: first dq, then dk and dv.
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

/// to = from; `value` if the data of `from` is null.
cudaError_t launchRows(const RowView& to, const RowView& from, float value, int64_t batch, int64_t tokens,
                       int64_t heads, cudaStream_t stream);

/// Token i of `to` = token index[i] of `from`, 0 <= i < tokens; the views have one type and different memory.
cudaError_t launchGather(const View& to, const View& from, const int32_t* index, int64_t batch, int64_t tokens,
                         int64_t heads, int64_t dim, cudaStream_t stream);

}  // namespace seqpar::attn::softmax
