// What one launch of the kernels has of a rank's tokens: all of them, or one sequence of a packed batch. Kernels begin
// packed sequences with zeros; where some begin with states of their own, each is a launch. Compiles without CUDA.
#pragma once

#include <vector>

#include "attn/linear/passes/passes.h"
#include "kernels/attn/linear/args.h"

namespace seqpar::attn::linear {

struct Part {
  LinearProblem shape;  ///< tensors have no data yet
  Segments segments;
  bool apart = false;  ///< what betterApart() says
  Piece piece;         ///< of all tokens: its `tokens` alone count
};

/// What the kernels get for a shard; tensors have no data yet.
LinearProblem kernelProblem(const Shard& shard);

/// The problem for what depends on sizes alone: pointers come with the calls.
LinearProblem withoutTensors(LinearProblem problem);

/// Why no kernel can do what a shard asks for; NULL: there is one.
const char* whyNoKernel(const Shard& shard);

/// `ctas`: how many the kernels have at once.
Part wholeOf(const Shard& shard, int ctas);
/// A part for each piece of packed sequences; none without packing.
std::vector<Part> partsOf(const Shard& shard, int ctas);

/// The part's problem with its tokens of the tensors.
LinearProblem problemOf(const Part& part, const Inputs& in);

/// A tensor as kernels take it, from the token `first` on.
Input inputOf(const Tensor& tensor, size_t first = 0);
Output outputOf(const Tensor& tensor, size_t first = 0);

/// Workspace that is enough for the whole, or for one part after the other.
struct PartSizes {
  size_t maps = 0, gradients = 0;  ///< in bytes
};
PartSizes largestOf(const Part& whole, const std::vector<Part>& parts);

}  // namespace seqpar::attn::linear
