// Arguments of the sm_90 gradients' kernels for token decays: a task and its tensor maps.
#pragma once

#include "kernels/attn/linear/backward/tiles_sm90.h"
#include "kernels/attn/linear/forward_sm90/tensor_map_sm90.h"

namespace seqpar::attn::backward::sm90 {

struct MappedTask : Task {
  CUtensorMap queries, keys, values, outputs;  ///< boxes of 64 tokens and 64 columns; outputs: dOut
};

/// Returns false if the TMA does not support the tensors of `task`. Without tokens, the maps are not used.
template <class T>
bool encodeMaps(MappedTask& to, const Task& task) {
  static_cast<Task&>(to) = task;
  if (task.tokens == 0) return true;
  constexpr int64_t kMostTokens = INT64_C(1) << 30;
  if (task.tokens >= kMostTokens) return false;
  LinearProblem problem;
  problem.batch = task.batch;
  problem.tokens = task.tokens;
  const int type = ptx::kIsBf16<T> ? seqparBfloat16 : seqparFloat16;
  const auto encode = [&](CUtensorMap& map, const Input& tensor, int columns, int heads) {
    return forward_sm90::encodeMap(map, {tensor, type, columns, heads, kPanel, kChunk, true}, problem);
  };
  const int qkHeads = task.heads / task.group;
  return encode(to.queries, task.q, task.dk, qkHeads) && encode(to.keys, task.k, task.dk, qkHeads) &&
         encode(to.values, task.v, task.dv, task.heads) && encode(to.outputs, task.dOut, task.dv, task.heads);
}

}  // namespace seqpar::attn::backward::sm90
