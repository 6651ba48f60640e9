// Heads with 129 to 256 channels of k, in two blocks of 128: the state's rows of a block depend on the block's queries,
// keys and decays only, and outputs are the sum of both blocks' outputs. Pass 1 has an item per block. Pass 3
// alternates between the blocks after each window of tokens, so that the first one's outputs, which the second one
// adds, and the states stay in the L2 cache. Each thread reads only what it wrote itself.
#pragma once

#include "kernels/attn/linear/forward_sm90/pipeline_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

constexpr int kBlocks = 2;
static_assert(kMostKeyDimension == kBlocks * Shape::kChannels);
constexpr int kWindowChunks = 16;

/// One block of an item's channels, over a window of its tokens.
struct Sweep : Item {
  int block = 0;
  bool opens = true, closes = true;  ///< the window is the item's first, its last one
  int second = 0;                    ///< pass 1: the second head of an item with two
  bool isLast = false;               ///< pass 1: the last piece of its heads (NeededPieces)

  SEQPAR_DEVICE int firstChannel() const { return block * Shape::kChannels; }
};

/// Calls act(sweep, running number of its first chunk), which returns its number of chunks, for all sweeps of the item
/// itemOf(); returns the sum. The item is computed again for each sweep, because it would occupy registers.
template <bool Wide, class ItemOf, class Act>
SEQPAR_DEVICE int eachSweep(const ItemOf& itemOf, int first, const Act& act) {
  if constexpr (!Wide) return act(Sweep{itemOf()}, first);
  int running = first;
  bool more = true;
  for (int number = 0; more; ++number) {
    Sweep sweep{itemOf()};
    sweep.block = number % kBlocks;
    sweep.begin += number / kBlocks * (kWindowChunks * kChunk);
    sweep.opens = number < kBlocks;
    sweep.closes = sweep.end - sweep.begin <= kWindowChunks * kChunk;
    if (!sweep.closes) sweep.end = sweep.begin + kWindowChunks * kChunk;
    more = !sweep.closes || sweep.block + 1 < kBlocks;
    running += act(sweep, running);
  }
  return running - first;
}

/// A consumer thread's numbers in device memory that only it reads; `to` is the warpgroup's.
template <int Count>
SEQPAR_DEVICE void putOwn(float* to, const float (&numbers)[Count]) {
  auto* const at = reinterpret_cast<float4*>(to) + threadIdx.x % kGroupThreads;
#pragma unroll
  for (int j = 0; j < Count / 4; ++j)
    at[j * kGroupThreads] = make_float4(numbers[4 * j], numbers[4 * j + 1], numbers[4 * j + 2], numbers[4 * j + 3]);
}
/// Calls act(number, its value in memory).
template <int Count, class Act>
SEQPAR_DEVICE void eachOwn(float (&numbers)[Count], const float* from, const Act& act) {
  const auto* const at = reinterpret_cast<const float4*>(from) + threadIdx.x % kGroupThreads;
#pragma unroll
  for (int j = 0; j < Count / 4; ++j) {
    const float4 four = at[j * kGroupThreads];
    act(numbers[4 * j], four.x);
    act(numbers[4 * j + 1], four.y);
    act(numbers[4 * j + 2], four.z);
    act(numbers[4 * j + 3], four.w);
  }
}

/// A CTA's part of Outputs::workspace, in floats: the first block's outputs of a window, then a state per block.
struct SweepMemory {
  static constexpr int kOutputs = 32 * kGroupThreads;  ///< of a chunk and a consumer
  static constexpr int kState = Shape::kStateElements * kGroupThreads;
  static constexpr int kStates = kWindowChunks * kConsumers * kOutputs;
  static constexpr int64_t kFloats = kStates + kBlocks * kConsumers * kState;

  float* at;
  int which;  ///< of the consumers

  SEQPAR_DEVICE float* outputs(const Sweep& sweep, int token) const {
    const int chunk = (token - static_cast<int>(sweep.begin)) / kChunk;
    return at + (chunk * kConsumers + which) * kOutputs;
  }
  SEQPAR_DEVICE float* state(const Sweep& sweep) const {
    return at + kStates + (sweep.block * kConsumers + which) * kState;
  }
};

}  // namespace seqpar::attn::forward_sm90
