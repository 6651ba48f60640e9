// Base of all algorithms of softmax attention: the problem, the block kernel, the rows of this rank's tokens.
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
  /// The block's kernel calls.
  std::vector<Count> counts() const override;

 protected:
  /// A block for `heads` query heads starting at `firstHead` and their `kvHeads` starting at `firstKvHead`, in query
  /// tensors with `rowHeads` heads (0: `heads`).
  SoftmaxOperator(const Problem& problem, Exec& exec, int64_t firstHead, int64_t heads, int64_t firstKvHead,
                  int64_t kvHeads, int64_t rowHeads = 0);
  /// A block for all heads.
  SoftmaxOperator(const Problem& problem, Exec& exec)
      : SoftmaxOperator(problem, exec, 0, problem.desc.heads, 0, problem.desc.kvHeads) {}

  /// `arena`, or one with null pieces where accumulators need no memory. After block_->carve().
  Arena& accumulatorArena(Arena& arena) { return block_->accumulatesInMemory() ? arena : nowhere_; }
  /// An accumulator for `tokens` rows of the block's heads.
  Partial takePartial(Arena& arena, int64_t tokens) const;
  const float* sinks(const float* given) const { return problem_.desc.sinks != 0 ? given : nullptr; }
  /// Computes delta of this rank's rows if it is read, and the sinks' gradient. `block` covers all heads.
  void makeDelta(Block& block, const seqparAttnBackwardArgs_t& args, const Rows& delta);

  const Problem& problem_;
  Exec& exec_;
  std::unique_ptr<Block> block_;

 private:
  Arena nowhere_;
};

/// The type of sent contributions to key gradients if each contribution is of at most one rectangle:
/// blocks on GPUs have already rounded it, so fp32 would not be more exact.
seqparDataType_t typeOfSingleShare(const Problem& problem);

/// Whether the gradients of each key of these rectangles are the result of one block call.
bool singleShares(const Problem& problem, std::span<const Rectangle> rectangles);

/// A block for all heads, for algorithms with a block for some heads.
std::unique_ptr<Block> blockOfAllHeads(const Problem& problem, Exec& exec);

}  // namespace seqpar::attn
