// Arguments of chains with Task::readsRows: a task and the tensor maps of its tensors.
#pragma once

#include "kernels/attn/linear/delta/half/memory_sm90.h"
#include "kernels/attn/linear/forward_sm90/tensor_map_sm90.h"

namespace seqpar::attn::delta::half {

struct RowsTask : Task {
  /// Boxes of 64 tokens and 64 columns. In Retreat, outputs: dOut, values: dv_.
  CUtensorMap keys, queries, values, outputs;
  bool mapped = false;       ///< whether the TMA supports the tensors; else the maps are not used
  bool storesBoxes = false;  ///< the same of `out`, in Retreat of `dv_`
};

inline void encodeRows(RowsTask& to, const Task& task, Step step) {
  static_cast<Task&>(to) = task;
  constexpr int64_t kMostTokens = INT64_C(1) << 30;
  LinearProblem problem;
  problem.batch = task.batch;
  problem.tokens = task.tokens;
  const auto encode = [&](CUtensorMap& map, const Input& tensor, int columns, int heads) {
    return tensor.data == nullptr ||
           (columns % 8 == 0 &&
            forward_sm90::encodeMap(map, {tensor, task.type, columns, heads, kColumns, kRows, true}, problem));
  };
  to.mapped = task.tokens > 0 && task.tokens < kMostTokens && encode(to.keys, task.k, task.dk, task.keyHeads) &&
              encode(to.queries, task.q, task.dk, task.keyHeads) &&
              (step == Step::Retreat ? encode(to.outputs, task.dOut, task.dv, task.heads)
                                     : encode(to.values, task.v, task.dv, task.heads));
  const bool ofValues = step == Step::Retreat && task.keepsStates;
  if (to.mapped && (task.writesOut || ofValues)) {
    const Output& out = ofValues ? task.dv_ : task.out;
    to.storesBoxes =
        encode(ofValues ? to.values : to.outputs, {out.data, out.batch, out.token, out.head}, task.dv, task.heads);
  }
}

}  // namespace seqpar::attn::delta::half
