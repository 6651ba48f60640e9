// The tokens of one kernel launch: all tokens of a rank, or one sequence of a packed batch. Kernels start packed
// sequences from zero states; sequences with caller states are separate launches. A segment contains tokens of one
// sequence only, so products never mix sequences. Compiles without CUDA.
#pragma once

#include <vector>

#include "attn/linear/passes/passes.h"
#include "kernels/attn/linear/args.h"

namespace seqpar::attn::linear {

struct Part {
  LinearProblem shape;  ///< tensors have no data yet
  Segments segments;
  Maps content = Maps::Prefix;  ///< fastestMaps()
  Piece piece;                  ///< for all tokens, only `tokens` is used
};

/// The kernels' arguments for a shard; tensors have no data yet.
LinearProblem kernelProblem(const Shard& shard);

/// The problem without tensors, for functions of sizes only: pointers are passed with the calls.
LinearProblem withoutTensors(LinearProblem problem);

/// Why no kernel supports a shard; NULL: one does.
const char* whyNoKernel(const Shard& shard);

/// `ctas`: number of CTAs of the kernels that run at once, for all heads. Packed: `spans` gets the spans of the
/// segments, for device memory.
Part wholeOf(const Shard& shard, int ctas, std::vector<Span>& spans);
/// A part for each piece of packed sequences; none without packing.
std::vector<Part> partsOf(const Shard& shard, int ctas);

/// A tensor as a kernel argument, from the token `first` on. Strides of dimensions of size 1 are multiples of 16 bytes.
Input inputOf(const Tensor& tensor, size_t first = 0);
Output outputOf(const Tensor& tensor, size_t first = 0);
/// Throws InvalidArgument in the name of `call` for tensors without the addresses and strides that whyNot() requires.
class AlignmentCheck {
 public:
  AlignmentCheck(const char* call, const LinearProblem& shape) : call_(call), shape_(withoutTensors(shape)) {}

  /// `readsValues`: the kernels read in.v, and not its products with an input gate.
  const AlignmentCheck& inputs(const Inputs& in, bool readsValues) const;
  const AlignmentCheck& gradients(const Gradients& to) const;
  /// Rows of keys or values, as v.
  const AlignmentCheck& rows(const char* name, const Tensor& tensor) const;

 private:
  const AlignmentCheck& gates(const char* name, const Tensor& tensor) const;
  const AlignmentCheck& require(const char* name, const Tensor& tensor, Input LinearProblem::*as) const;

  const char* call_;
  const LinearProblem shape_;
};

/// Workspace for the whole, which also suffices for one part after the other.
struct PartSizes {
  size_t maps = 0, gradients = 0;  ///< in bytes
};
/// `joins`: of gradientsWorkspaceSize().
PartSizes largestOf(const Part& whole, const std::vector<Part>& parts, bool joins);

}  // namespace seqpar::attn::linear
