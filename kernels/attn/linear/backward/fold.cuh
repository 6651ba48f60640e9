// Element-wise ends of the passes: maps of segments become maps of everything after a segment, and terms of gradients
// are added, always in the same order.
#pragma once

#include "kernels/attn/linear/backward/instances.cuh"

namespace seqpar::attn::backward {

constexpr int kFoldThreads = 256;

/// Of each head in the range: the state's elements, four a thread. maps.states becomes that of everything after the
/// segment, and stateGradient, unless NULL, the rank's. Reads the segments' own log-decays.
__global__ void __launch_bounds__(kFoldThreads) foldStates(const __grid_constant__ Task task, float* stateGradient) {
  const int64_t size = int64_t{task.dk} * task.dv;
  const int64_t element = (int64_t{blockIdx.x} * kFoldThreads + threadIdx.x) * 4;
  if (element >= size) return;
  const int sequence = static_cast<int>(blockIdx.y) / task.headCount;
  const int64_t head = int64_t{sequence} * task.heads + task.firstHead + static_cast<int>(blockIdx.y) % task.headCount;
  const int width = task.gate == Gate::Channel ? task.dk : 1;
  const int64_t row = width == 1 ? 0 : element / task.dv;
  float4 sum = make_float4(0, 0, 0, 0);
  const int64_t map = head * task.segments;
  float4 next = *reinterpret_cast<const float4*>(task.maps.states + (map + task.segments - 1) * size + element);
  for (int64_t i = task.segments - 1; i >= 0; --i) {
    const float4 own = next;
    float* at = task.maps.states + (map + i) * size + element;
    if (i > 0) next = *reinterpret_cast<const float4*>(at - size);
    const float decay = decayOf(task.maps.logDecays[(map + i) * width + row] * kLog2e);
    *reinterpret_cast<float4*>(at) = sum;
    sum.x = times(decay, sum.x) + own.x;
    sum.y = times(decay, sum.y) + own.y;
    sum.z = times(decay, sum.z) + own.z;
    sum.w = times(decay, sum.w) + own.w;
  }
  if (stateGradient != nullptr) *reinterpret_cast<float4*>(stateGradient + head * size + element) = sum;
}

/// The same of the log-decays, after it.
__global__ void __launch_bounds__(kFoldThreads) foldDecays(const __grid_constant__ Task task, float* logDecay) {
  const int width = task.gate == Gate::Channel ? task.dk : 1;
  const int sequence = static_cast<int>(blockIdx.x) / task.headCount;
  const int64_t head = int64_t{sequence} * task.heads + task.firstHead + static_cast<int>(blockIdx.x) % task.headCount;
  for (int row = static_cast<int>(threadIdx.x); row < width; row += kFoldThreads) {
    float sum = 0;
    for (int64_t i = task.segments - 1; i >= 0; --i) {
      float* at = task.maps.logDecays + (head * task.segments + i) * width + row;
      const float own = *at;
      *at = sum;
      sum += own;
    }
    if (logDecay != nullptr) logDecay[head * width + row] = sum;
  }
}

/// Terms [batch][tokens][heads][blocks][width], fp32, to a gradient of tokens, added over blocks and over the heads
/// that share one of the target's.
struct Sum {
  const float* terms;
  Target to;  ///< head: of the target's heads
  int64_t batch, tokens;
  int heads, group, blocks, width;
  int firstHead, headCount;  ///< of the target
};
__global__ void __launch_bounds__(kFoldThreads) addTerms(const __grid_constant__ Sum sum) {
  const int64_t count = sum.batch * sum.tokens * sum.headCount * sum.width;
  for (int64_t i = int64_t{blockIdx.x} * kFoldThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kFoldThreads) {
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
__global__ void __launch_bounds__(kFoldThreads) addTokens(const __grid_constant__ Sum sum) {
  __shared__ double parts[kFoldThreads];
  const int head = sum.firstHead + static_cast<int>(blockIdx.x);
  double value = 0;
  for (int64_t row = threadIdx.x; row < sum.batch * sum.tokens; row += kFoldThreads) {
    for (int b = 0; b < sum.blocks; ++b)
      value += static_cast<double>(sum.terms[(row * sum.heads + head) * sum.blocks + b]);
  }
  parts[threadIdx.x] = value;
  __syncthreads();
  for (int half = kFoldThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) static_cast<float*>(sum.to.data)[head * sum.to.head] = static_cast<float>(parts[0]);
}

}  // namespace seqpar::attn::backward
