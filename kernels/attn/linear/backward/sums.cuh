// Terms of gradients are added up, always in the same order.
#pragma once

#include "kernels/attn/linear/backward/instances.cuh"

namespace seqpar::attn::backward {

constexpr int kSumThreads = 256;

/// Terms [batch][tokens][heads][blocks][width], fp32, to a gradient of tokens, added over blocks and over the heads
/// that share one of the target's.
struct Sum {
  const float* terms;
  Target to;  ///< head: of the target's heads
  int64_t batch, tokens;
  int heads, group, blocks, width;
  int firstHead, headCount;  ///< of the target
};
__global__ void __launch_bounds__(kSumThreads) addTerms(const __grid_constant__ Sum sum) {
  const int64_t count = sum.batch * sum.tokens * sum.headCount * sum.width;
  for (int64_t i = int64_t{blockIdx.x} * kSumThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kSumThreads) {
    const int column = static_cast<int>(i % sum.width);
    const int64_t rest = i / sum.width, row = rest / sum.headCount;
    const int head = sum.firstHead + static_cast<int>(rest % sum.headCount);
    const float* first = sum.terms + ((row * sum.heads + int64_t{head} * sum.group) * sum.blocks) * sum.width + column;
    float value = 0;
    for (int term = 0; term < sum.group * sum.blocks; ++term) value += first[int64_t{term} * sum.width];
    const int64_t at = row / sum.tokens * sum.to.batch + row % sum.tokens * sum.to.token + head * sum.to.head + column;
    if (sum.to.type == seqparFloat32) {
      static_cast<float*>(sum.to.data)[at] = value;
    } else {
      static_cast<uint16_t*>(sum.to.data)[at] = static_cast<uint16_t>(
          sum.to.type == seqparBfloat16 ? warp::pack<Bf16>(value, 0) : warp::pack<Fp16>(value, 0));
    }
  }
}

/// The gradient of one decay a head: its tokens' terms [batch][tokens][heads][blocks] added up. A block a head.
__global__ void __launch_bounds__(kSumThreads) addTokens(const __grid_constant__ Sum sum) {
  __shared__ double parts[kSumThreads];
  const int head = sum.firstHead + static_cast<int>(blockIdx.x);
  double value = 0;
  for (int64_t row = threadIdx.x; row < sum.batch * sum.tokens; row += kSumThreads) {
    for (int b = 0; b < sum.blocks; ++b)
      value += static_cast<double>(sum.terms[(row * sum.heads + head) * sum.blocks + b]);
  }
  parts[threadIdx.x] = value;
  __syncthreads();
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) static_cast<float*>(sum.to.data)[head * sum.to.head] = static_cast<float>(parts[0]);
}

}  // namespace seqpar::attn::backward
