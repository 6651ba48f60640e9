// The short convolution of one rank on a host, by blocks of channels.
#pragma once

#include "attn/short_conv/passes.h"

namespace seqpar::attn::short_conv {

constexpr size_t kChannels = 128;  ///< of a block; one thread processes it
constexpr size_t kTokens = 64;     ///< in scratch memory at a time

inline size_t blocksOf(const Shape& shape) {
  return (shape.channels + kChannels - 1) / kChannels;
}

/// Scratch memory of a thread, in fp32 elements.
size_t scratchNumbers(const Shape& shape);

/// y of tokens first ... last - 1, of one block of channels.
void forward(const Shape& shape, const Arrays& arrays, size_t block, size_t first, size_t last, float* scratch);

/// Gradients of z of the first edge() tokens: edge[batch][edge()][channels].
void edgeGradients(const Shape& shape, const Arrays& arrays, size_t block, float* edge, float* scratch);

/// dx, dWeight and dBias of one block of channels.
void backward(const Shape& shape, const Arrays& arrays, size_t block, float* scratch);

}  // namespace seqpar::attn::short_conv
