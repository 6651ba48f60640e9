// Adds terms of gradients, always in the same order.
//
// Work      addTerms, addAllTerms: a CTA of 256 threads takes rows, a token's heads, or adjacent elements, in steps
//           of the grid; addAllTerms: a row of the grid has one gradient. addTokens: a CTA of 1024 threads has one head
// Roles     addTerms: a thread has 1 or 4 adjacent elements, or 8 of terms with scales; addTokens: a block of every
//           n-th token
// Tiles     none
// Smem      addTokens: a double per thread
// Barriers  addTokens: __syncthreads() between the steps of a tree of sums
// Overlap   addAllTerms starts early, and waits before all accesses
#pragma once

#include "kernels/arch/pdl.h"
#include "kernels/attn/linear/backward/instances.cuh"

namespace seqpar::attn::backward {

constexpr int kSumThreads = 256;

/// Sum of terms [batch][tokens][heads][blocks][width], fp32, over blocks and over the heads that share a head of the
/// target, to a gradient of tokens. With scales: one block, 16 bits, as Target describes.
struct Sum {
  const void* terms;
  Target to;  ///< head: of the target's heads
  int64_t batch, tokens;
  int heads, group, blocks, width;
  int firstHead, headCount;  ///< of the target
  const float* scales;
  const uint32_t* onlyIf;  ///< as Task::onlyIf
};

/// kNumbers adjacent elements of a sum of terms, each with a fixed order.
template <int kNumbers>
SEQPAR_DEVICE void addUpTo(float (&value)[kNumbers], const float* first, int terms, int stride) {
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) value[i] = 0;
#pragma unroll 4
  for (int term = 0; term < terms; ++term) {
    if constexpr (kNumbers == 4) {
      const float4 four = __ldcs(reinterpret_cast<const float4*>(first + int64_t{term} * stride));
      value[0] += four.x;
      value[1] += four.y;
      value[2] += four.z;
      value[3] += four.w;
    } else {
      value[0] += first[int64_t{term} * stride];
    }
  }
}

template <int kNumbers>
SEQPAR_DEVICE void put(const Target& to, int64_t at, const float (&value)[kNumbers]) {
  const auto shortOf = [&](float low, float high) {
    return to.type == seqparBfloat16 ? ptx::pack<Bf16>(low, high) : ptx::pack<Fp16>(low, high);
  };
  if (kNumbers == 4 && to.wide) {
    if (to.type == seqparFloat32) {
      *reinterpret_cast<float4*>(static_cast<float*>(to.data) + at) =
          make_float4(value[0], value[1 % kNumbers], value[2 % kNumbers], value[3 % kNumbers]);
    } else {
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(to.data) + at) =
          make_uint2(shortOf(value[0], value[1 % kNumbers]), shortOf(value[2 % kNumbers], value[3 % kNumbers]));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) {
    if (to.type == seqparFloat32) {
      static_cast<float*>(to.data)[at + i] = value[i];
    } else {
      static_cast<uint16_t*>(to.data)[at + i] = static_cast<uint16_t>(shortOf(value[i], 0));
    }
  }
}

/// `width` is a multiple of kNumbers. The threads of a block process one row, or several short ones.
template <int kNumbers>
SEQPAR_DEVICE void addRows(const Sum& sum) {
  const int units = sum.width / kNumbers, ofRow = sum.headCount * units;
  const int rowsAtOnce = ofRow < kSumThreads ? kSumThreads / ofRow : 1;
  const int thread = static_cast<int>(threadIdx.x), own = rowsAtOnce > 1 ? thread / ofRow : 0;
  if (own >= rowsAtOnce) return;
  const int64_t rows = sum.batch * sum.tokens, step = int64_t{gridDim.x} * rowsAtOnce;
  for (int64_t row = int64_t{blockIdx.x} * rowsAtOnce + own; row < rows; row += step) {
    const int64_t sequence = sum.batch == 1 ? 0 : row / sum.tokens;
    const int64_t to = sequence * sum.to.batch + (row - sequence * sum.tokens) * sum.to.token;
    for (int unit = thread - own * ofRow; unit < ofRow; unit += kSumThreads) {
      const int ofHead = unit / units, head = sum.firstHead + ofHead, column = (unit - ofHead * units) * kNumbers;
      const int64_t first = (row * sum.heads + int64_t{head} * sum.group) * sum.blocks * sum.width + column;
      float value[kNumbers];
      addUpTo(value, static_cast<const float*>(sum.terms) + first, sum.group * sum.blocks, sum.width);
      put(sum.to, to + head * sum.to.head + column, value);
    }
  }
}

template <int kNumbers>
__global__ void __launch_bounds__(kSumThreads) addTerms(const __grid_constant__ Sum sum) {
  if (sum.onlyIf != nullptr && *sum.onlyIf == 0) return;
  addRows<kNumbers>(sum);
}

constexpr int kTermsTogether = 8;

/// The same as addRows() for terms with scales; their width is a multiple of 16.
SEQPAR_DEVICE void addScaled(const Sum& sum) {
  const int units = sum.width / kTermsTogether;
  const int64_t count = sum.batch * sum.tokens * sum.headCount * units, step = int64_t{gridDim.x} * kSumThreads;
  for (int64_t at = int64_t{blockIdx.x} * kSumThreads + threadIdx.x; at < count; at += step) {
    const int64_t row = at / (sum.headCount * units), sequence = sum.batch == 1 ? 0 : row / sum.tokens;
    const int ofRow = static_cast<int>(at - row * (sum.headCount * units)), head = sum.firstHead + ofRow / units,
              column = ofRow % units * kTermsTogether;
    const int64_t first = row * sum.heads + int64_t{head} * sum.group;
    const auto* terms = static_cast<const uint16_t*>(sum.terms) + first * sum.width + column;
    const float* scales = sum.scales + first * scalesOf(sum.width) + column / kScaled;
    float value[kTermsTogether] = {};
#pragma unroll 8
    for (int term = 0; term < sum.group; ++term) {
      const uint4 words = __ldcs(reinterpret_cast<const uint4*>(terms + int64_t{term} * sum.width));
      const float scale = scales[term * scalesOf(sum.width)];
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        value[i * 2] += scale < 0 ? ptx::lowOf<Bf16>(word[i]) : ptx::lowOf<Fp16>(word[i]) * scale;
        value[i * 2 + 1] += scale < 0 ? ptx::highOf<Bf16>(word[i]) : ptx::highOf<Fp16>(word[i]) * scale;
      }
    }
    const int64_t to = sequence * sum.to.batch + (row - sequence * sum.tokens) * sum.to.token + head * sum.to.head;
#pragma unroll
    for (int i = 0; i < kTermsTogether; i += 4) {
      const float four[4] = {value[i], value[i + 1], value[i + 2], value[i + 3]};
      put(sum.to, to + column + i, four);
    }
  }
}

constexpr int kRowTogether = 4;

/// Of dq, dk, dv and gates; the widths of those without scales are multiples of kRowTogether.
struct Sums {
  Sum of[4];
  int count;
};
/// The kernel is launched after one that waits for all earlier ones.
__global__ void __launch_bounds__(kSumThreads) addAllTerms(const __grid_constant__ Sums sums) {
  const Sum& sum = sums.of[blockIdx.y];
  ptx::griddepcontrolWait();
  if (sum.onlyIf != nullptr && *sum.onlyIf == 0) return;
  if (sum.scales != nullptr) {
    addScaled(sum);
  } else {
    addRows<kRowTogether>(sum);
  }
}

constexpr int kTokenSumThreads = 1024;
/// Sums the terms [batch][tokens][heads][blocks] of a gradient with one decay per head. One CTA per head; there are
/// fewer blocks than threads.
__global__ void __launch_bounds__(kTokenSumThreads) addTokens(const __grid_constant__ Sum sum) {
  __shared__ double parts[kTokenSumThreads];
  const int head = sum.firstHead + static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int rowsAtOnce = kTokenSumThreads / sum.blocks, block = thread % sum.blocks;
  const auto* terms = static_cast<const float*>(sum.terms) + int64_t{head} * sum.blocks + block;
  const int64_t rows = thread < rowsAtOnce * sum.blocks ? sum.batch * sum.tokens : 0,
                stride = int64_t{sum.heads} * sum.blocks;
  double value = 0;
#pragma unroll 8
  for (int64_t row = thread / sum.blocks; row < rows; row += rowsAtOnce) {
    value += static_cast<double>(terms[row * stride]);
  }
  parts[thread] = value;
  __syncthreads();
  for (int half = kTokenSumThreads / 2; half > 0; half /= 2) {
    if (thread < half) parts[thread] += parts[thread + half];
    __syncthreads();
  }
  if (thread == 0) static_cast<float*>(sum.to.data)[head * sum.to.head] = static_cast<float>(parts[0]);
}

}  // namespace seqpar::attn::backward
