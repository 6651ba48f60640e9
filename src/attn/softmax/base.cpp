#include "attn/softmax/base.h"

#include "attn/block/cuda_steps.h"

namespace seqpar::attn {
namespace {

BlockShape shapeOf(const Problem& problem, int64_t firstHead, int64_t heads, int64_t firstKvHead, int64_t kvHeads,
                   int64_t rowHeads) {
  const auto& d = problem.desc;
  BlockShape shape;
  shape.batch = d.batch;
  shape.heads = heads;
  shape.kvHeads = kvHeads;
  shape.rowHeads = rowHeads;
  shape.headDim = d.headDim;
  shape.valueDim = d.valueDim;
  shape.group = problem.group();
  shape.phase = problem.phase + firstHead - firstKvHead * problem.group();
  shape.type = problem.type();
  shape.scale = d.scale;
  shape.softcap = d.softcap;
  shape.training = problem.training();
  shape.deterministic = d.deterministic != 0;
  shape.changing = problem.packed() || !problem.sliceNumbers.empty();
  shape.kernel = problem.kernel;
  return shape;
}

}  // namespace

SoftmaxOperator::SoftmaxOperator(const Problem& problem, Exec& exec, int64_t firstHead, int64_t heads,
                                 int64_t firstKvHead, int64_t kvHeads, int64_t rowHeads)
    : problem_(problem),
      exec_(exec),
      block_(makeBlock(exec, shapeOf(problem, firstHead, heads, firstKvHead, kvHeads, rowHeads))) {}

std::vector<Count> SoftmaxOperator::counts() const {
  const auto calls = block_->calls();
  return {{"forwardCalls", calls.forward}, {"backwardCalls", calls.backward}};
}

std::unique_ptr<Block> blockOfAllHeads(const Problem& problem, Exec& exec) {
  return makeBlock(exec, shapeOf(problem, 0, problem.desc.heads, 0, problem.desc.kvHeads, 0));
}

seqparDataType_t typeOfSingleShare(const Problem& problem) {
  return problem.wireType() == seqparFloat32 && problem.blockTraits().roundsGradients ? problem.type()
                                                                                      : problem.wireType();
}

bool singleShares(const Problem& problem, std::span<const Rectangle> rectangles) {
  if (!problem.onDevice() || problem.kernel.forward != nullptr) return columnsDisjoint(rectangles);
  return columnsDisjoint(forBackward(rectangles));
}

Partial SoftmaxOperator::takePartial(Arena& arena, int64_t tokens) const {
  const auto& d = problem_.desc;
  return {arena.tensor(seqparFloat32, d.batch, tokens, d.heads, d.valueDim), arena.rows(d.batch, d.heads, tokens)};
}

void SoftmaxOperator::makeDelta(Block& block, const seqparAttnBackwardArgs_t& args, const Rows& delta) {
  const bool withSinks = problem_.desc.sinks != 0;
  if (block.needsOut() && !withSinks) return;
  block.delta(outTensor(problem_, args.out), outTensor(problem_, args.dOut), delta);
  if (withSinks) block.sinkGradient(args.sinks, lseRows(problem_, args.lse), delta, args.dSinks);
}

}  // namespace seqpar::attn
