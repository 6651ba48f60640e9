// A rank's local work in the short convolution, as passes with halo exchanges between them. One implementation for
// hosts, one for CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "attn/exec/exec.h"
#include "kernels/attn/short_conv/args.h"
#include "seqpar/types.h"

namespace seqpar::attn::short_conv {

struct Shape {
  size_t batch = 1, tokens = 0, channels = 1, width = 1;
  bool silu = true;
  seqparDataType_t type = seqparFloat32, weightType = seqparFloat32;
  /// For each local token: the tokens before and after it in its sequence, at most width - 1.
  std::vector<uint8_t> before, behind;

  size_t halo() const { return width - 1; }
  /// Tokens that neighbors need from this rank.
  size_t edge() const { return tokens < halo() ? tokens : halo(); }
};

/// All functions enqueue on the Exec's main stream.
class Passes {
 public:
  virtual ~Passes() = default;

  /// Takes memory. Runs twice, as described for Arena.
  virtual void carve(Arena& arena) = 0;
  /// Once, before the other passes: initializes the memory from carve().
  virtual void open() = 0;
  /// y of tokens first ... last - 1.
  virtual void forward(const Arrays& arrays, size_t first, size_t last) = 0;
  /// Gradients of z of the first edge() tokens: edge[batch][edge()][channels].
  virtual void edgeGradients(const Arrays& arrays, float* edge) = 0;
  /// dx, dWeight and dBias.
  virtual void backward(const Arrays& arrays) = 0;
};

/// `shape` must outlive the passes. Throws Error.
std::unique_ptr<Passes> makePasses(const Shape& shape, bool training, Exec& exec);
std::unique_ptr<Passes> makeHostPasses(const Shape& shape, Exec& exec);
std::unique_ptr<Passes> makeDevicePasses(const Shape& shape, bool training, Exec& exec);  ///< in builds with CUDA

}  // namespace seqpar::attn::short_conv
