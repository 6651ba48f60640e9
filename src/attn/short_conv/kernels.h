// The short convolution of one rank on a host, by blocks of channels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "seqpar/types.h"

namespace seqpar::attn::short_conv {

constexpr size_t kChannels = 128;  ///< of a block, which one thread works on
constexpr size_t kTokens = 64;     ///< that are in scratch memory at a time

struct Shape {
  size_t batch = 1, tokens = 0, channels = 1, width = 1;
  bool silu = true;
  seqparDataType_t type = seqparFloat32, weightType = seqparFloat32;
  /// Of each token of the rank: how many tokens before and behind it are of its sequence, width - 1 at most.
  std::vector<uint8_t> before, behind;

  size_t halo() const { return width - 1; }
  size_t blocks() const { return (channels + kChannels - 1) / kChannels; }
  /// Tokens that neighbors need of this rank.
  size_t edge() const { return tokens < halo() ? tokens : halo(); }
};

struct Arrays {
  const void *x = nullptr, *weight = nullptr, *bias = nullptr;
  const void* left = nullptr;  ///< [batch][width - 1][channels] of type: the tokens before the shard
  void* y = nullptr;
  // Backward:
  const void* dy = nullptr;
  const float* right = nullptr;  ///< [batch][width - 1][channels]: gradients of z of the tokens behind the shard
  void* dx = nullptr;
  float *dWeight = nullptr, *dBias = nullptr;
};

/// fp32 numbers of scratch memory that a thread needs.
size_t scratchNumbers(const Shape& shape);

/// y of tokens first ... last - 1, of one block of channels.
void forward(const Shape& shape, const Arrays& arrays, size_t block, size_t first, size_t last, float* scratch);

/// Gradients of z of the first edge() tokens: edge[batch][edge()][channels].
void edgeGradients(const Shape& shape, const Arrays& arrays, size_t block, float* edge, float* scratch);

/// dx, dWeight and dBias of one block of channels.
void backward(const Shape& shape, const Arrays& arrays, size_t block, float* scratch);

}  // namespace seqpar::attn::short_conv
