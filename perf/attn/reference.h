// Softmax attention in fp64, by its definition: the reference for a measured plan's error.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/layer.h"

namespace seqpar::perf {

/// Attention with equal tokens per rank; queries see only keys of their document.
struct SoftmaxProblem {
  size_t batch = 1, heads = 1, kvHeads = 1, headDim = 1;
  bool causal = false;
  size_t window = 0;            ///< tokens before it that a token sees; 0: all
  std::vector<int64_t> bounds;  ///< first tokens of the documents, and the total number of tokens

  /// Keys [first, end) that query `token` sees, and queries that see key `token`.
  struct Range {
    int64_t first, end;
  };
  Range keysOf(int64_t token) const;
  Range queriesOf(int64_t token) const;
};

/// Root mean square of the difference over that of the reference; each the maximum over its tensors.
struct RelativeError {
  double out = 0, gradients = 0;
};

/// Collective: the errors of the results of `plan`'s forward and backward in `layer`, for the first `kvHeads` key heads
/// of the first sequence and all query heads that use them. The time grows with the square of the tokens: seconds for
/// thousands.
RelativeError errorOf(const SoftmaxProblem& problem, const LayerPlan& plan, Layer& layer, Group& group, size_t kvHeads);

}  // namespace seqpar::perf
