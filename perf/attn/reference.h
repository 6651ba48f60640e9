// Softmax attention in fp64, by its definition: what the error of a measured plan is taken against.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/layer.h"

namespace seqpar::perf {

/// Attention whose every rank has as many tokens; queries see keys of their own document only.
struct SoftmaxProblem {
  size_t batch = 1, heads = 1, kvHeads = 1, headDim = 1;
  bool causal = false;
  size_t window = 0;            ///< tokens before its own that a token sees; 0: all
  std::vector<int64_t> bounds;  ///< where documents begin, and the number of all tokens

  /// Keys [first, end) that query `token` sees, and queries that see key `token`.
  struct Range {
    int64_t first, end;
  };
  Range keysOf(int64_t token) const;
  Range queriesOf(int64_t token) const;
};

/// Root mean square of the difference over that of the reference, each the larger of its tensors.
struct RelativeError {
  double out = 0, gradients = 0;
};

/// Collective: what forward and backward of `plan` have left in `layer`, for `kvHeads` heads of keys, the first ones of
/// the first sequence, and all heads of queries that use them. Takes the square of the tokens: seconds for thousands.
RelativeError errorOf(const SoftmaxProblem& problem, const LayerPlan& plan, Layer& layer, Group& group, size_t kvHeads);

}  // namespace seqpar::perf
