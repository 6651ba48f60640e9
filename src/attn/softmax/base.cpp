#include "attn/softmax/base.h"

namespace seqpar::attn {

SoftmaxOperator::SoftmaxOperator(const Problem& problem, Exec& exec, int64_t firstHead, int64_t heads,
                                 int64_t firstKvHead, int64_t kvHeads)
    : problem_(problem), exec_(exec) {
  const auto& d = problem.desc;
  BlockShape shape;
  shape.batch = d.batch;
  shape.heads = heads;
  shape.kvHeads = kvHeads;
  shape.headDim = d.headDim;
  shape.valueDim = d.valueDim;
  shape.group = problem.group();
  shape.phase = firstHead - firstKvHead * problem.group();
  shape.type = problem.type();
  shape.scale = d.scale;
  shape.softcap = d.softcap;
  shape.training = problem.training();
  shape.deterministic = d.deterministic != 0;
  shape.kernel = problem.kernel;
  block_ = makeBlock(exec, shape);
}

Partial SoftmaxOperator::takePartial(Arena& arena, int64_t tokens) const {
  const auto& d = problem_.desc;
  return {arena.tensor(seqparFloat32, d.batch, tokens, d.heads, d.valueDim), arena.rows(d.batch, d.heads, tokens)};
}

void SoftmaxOperator::makeDelta(const seqparAttnBackwardArgs_t& args, const Rows& delta) {
  const bool withSinks = problem_.desc.sinks != 0;
  if (block_->needsOut() && !withSinks) return;
  block_->delta(outTensor(problem_, args.out), outTensor(problem_, args.dOut), delta);
  if (withSinks) block_->sinkGradient(args.sinks, lseRows(problem_, args.lse), delta, args.dSinks);
}

std::string refusesNothing(const Problem&) {
  return {};
}

seqparLayoutKind_t balancedLayout(const Problem& problem) {
  return problem.desc.mask == seqparAttnCausal && !problem.windowed() ? seqparZigzag : seqparContiguous;
}

seqparLayoutKind_t contiguousLayout(const Problem&) {
  return seqparContiguous;
}

}  // namespace seqpar::attn
