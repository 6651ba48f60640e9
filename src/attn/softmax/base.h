// What all algorithms of softmax attention have: the problem, the block kernel, the tokens' own rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attn/block/block.h"
#include "attn/problem/operator.h"

namespace seqpar::attn {

class SoftmaxOperator : public Operator {
 public:
  std::string blockName() const override { return block_->name(); }

 protected:
  /// A block for `heads` query heads from `firstHead` on and the `kvHeads` that they use from `firstKvHead` on, in
  /// tensors of queries that have `rowHeads` (0: as many).
  SoftmaxOperator(const Problem& problem, Exec& exec, int64_t firstHead, int64_t heads, int64_t firstKvHead,
                  int64_t kvHeads, int64_t rowHeads = 0);
  /// A block for all heads.
  SoftmaxOperator(const Problem& problem, Exec& exec)
      : SoftmaxOperator(problem, exec, 0, problem.desc.heads, 0, problem.desc.kvHeads) {}

  /// An accumulator for `tokens` rows of the block's heads.
  Partial takePartial(Arena& arena, int64_t tokens) const;
  /// The arguments of forward or backward as views.
  template <typename Args>
  BlockInputs inputs(const Args& args) const {
    return {queryTensor(problem_, args.q), keyTensor(problem_, args.k), valueTensor(problem_, args.v)};
  }
  const float* sinks(const float* given) const { return problem_.desc.sinks != 0 ? given : nullptr; }
  /// delta of this rank's rows where something reads it, and the sinks' gradient. `block` is one of all heads.
  void makeDelta(Block& block, const seqparAttnBackwardArgs_t& args, const Rows& delta);

  const Problem& problem_;
  Exec& exec_;
  std::unique_ptr<Block> block_;
};

/// In which type ranks' shares of the gradients of keys travel where each is of one rectangle at most: blocks on GPUs
/// have rounded it already, and fp32 would be no more exact.
seqparDataType_t typeOfSingleShare(const Problem& problem);

/// A block for all heads, where an algorithm's own has some of them.
std::unique_ptr<Block> blockOfAllHeads(const Problem& problem, Exec& exec);

/// For algorithms that can do everything.
std::string refusesNothing(const Problem& problem);
/// Zigzag where later tokens see more than earlier ones, which balances the work; else contiguous.
seqparLayoutKind_t balancedLayout(const Problem& problem);
seqparLayoutKind_t contiguousLayout(const Problem& problem);
seqparLayoutKind_t zigzagLayout(const Problem& problem);
seqparLayoutKind_t stripedLayout(const Problem& problem);

}  // namespace seqpar::attn
