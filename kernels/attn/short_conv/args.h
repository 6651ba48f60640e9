// Arguments of the short convolution's kernels on one GPU. Compiles everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace seqpar::attn::short_conv {

/// Tokens are this rank's, in dense rows [batch][tokens][channels].
struct Arrays {
  const void *x = nullptr, *weight = nullptr, *bias = nullptr;
  const void* left = nullptr;  ///< [batch][width - 1][channels] of type: the tokens before the shard
  void* y = nullptr;
  // Backward:
  const void* dy = nullptr;
  const float* right = nullptr;  ///< [batch][width - 1][channels]: gradients of z of the tokens after the shard
  void* dx = nullptr;
  float *dWeight = nullptr, *dBias = nullptr;  ///< NULL: not written
};

/// Pointers are to device memory.
struct ConvTask : Arrays {
  int64_t batch = 1, tokens = 0, channels = 1;
  int width = 1;  ///< 1 to 8
  bool silu = true;
  int type = 0, weightType = 0;  ///< seqparDataType_t
  /// [tokens]: the number of tokens of the same sequence before and after each token, at most width - 1.
  const uint8_t *before = nullptr, *behind = nullptr;
  // Backward:
  float* edge = nullptr;   ///< [batch][edgeTokens][channels]: gradients of z of the first tokens
  int64_t edgeTokens = 0;  ///< min(tokens, width - 1)
  float* terms = nullptr;  ///< termsSize() bytes
};

/// Bytes of backward's scratch memory: each stretch's terms of the gradients of weights and biases.
size_t termsSize(const ConvTask& task);

/// Launches, only in builds with CUDA; `stream` is a cudaStream_t. They return a cudaError_t, do not allocate or
/// synchronize, can be captured, and return bitwise identical results on every call.
int launchForward(const ConvTask& task, int64_t first, int64_t last, void* stream);  ///< y of tokens [first, last)
int launchEdgeGradients(const ConvTask& task, void* stream);
int launchBackward(const ConvTask& task, void* stream);

}  // namespace seqpar::attn::short_conv
