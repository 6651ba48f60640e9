// The short convolution on one GPU: what its kernels take. Compiles everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace seqpar::attn::short_conv {

/// Tokens are this rank's, rows [batch][tokens][channels] dense.
struct Arrays {
  const void *x = nullptr, *weight = nullptr, *bias = nullptr;
  const void* left = nullptr;  ///< [batch][width - 1][channels] of type: the tokens before the shard
  void* y = nullptr;
  // Backward:
  const void* dy = nullptr;
  const float* right = nullptr;  ///< [batch][width - 1][channels]: gradients of z of the tokens behind the shard
  void* dx = nullptr;
  float *dWeight = nullptr, *dBias = nullptr;  ///< NULL: not wanted
};

/// Pointers are to device memory.
struct ConvTask : Arrays {
  int64_t batch = 1, tokens = 0, channels = 1;
  int width = 1;  ///< 1 to 8
  bool silu = true;
  int type = 0, weightType = 0;  ///< seqparDataType_t
  /// [tokens]: of each token how many before and behind it are of its sequence, width - 1 at most.
  const uint8_t *before = nullptr, *behind = nullptr;
  // Backward:
  float* edge = nullptr;   ///< [batch][edgeTokens][channels]: gradients of z of the first tokens
  int64_t edgeTokens = 0;  ///< the lesser of tokens and width - 1
  float* terms = nullptr;  ///< termsSize() bytes
};

/// Of backward's scratch memory: what each stretch of tokens adds to the gradients of weights and biases.
size_t termsSize(const ConvTask& task);

/// Launches, only in builds with CUDA; `stream` is a cudaStream_t. They return a cudaError_t, allocate nothing, do not
/// synchronize, can be captured, and give the same bits each time.
int launchForward(const ConvTask& task, int64_t first, int64_t last, void* stream);  ///< y of tokens first ... last - 1
int launchEdgeGradients(const ConvTask& task, void* stream);
int launchBackward(const ConvTask& task, void* stream);

}  // namespace seqpar::attn::short_conv
