// LOCAL: no exchange. Every rank's tokens attend to each other only: the lower bound of the other algorithms, and
// attention on one rank.
#include "attn/softmax/local.h"

#include "attn/softmax/base.h"
#include "attn/softmax/cost.h"

namespace seqpar::attn {
namespace {

class LocalOperator final : public SoftmaxOperator {
 public:
  LocalOperator(const Problem& problem, Exec& exec)
      : SoftmaxOperator(problem, exec), rectangles_(problem.rectangles(problem.rank(), problem.rank())) {
    block_->expect(rectangles_, problem.tokens(), problem.kvTokens(),
                   {.accumulated = true, .once = true, .sinks = problem.desc.sinks != 0});
  }

  void carve(Arena& arena) override {
    const auto& d = problem_.desc;
    block_->carve(arena);
    if (problem_.training()) delta_ = arena.rows(d.batch, d.heads, problem_.tokens());
    Arena& sums = accumulatorArena(arena);
    const auto takeSums = [&] {
      if (!problem_.training()) return;
      sums_ = {sums.tensor(seqparFloat32, d.batch, problem_.tokens(), d.heads, d.headDim),
               sums.tensor(seqparFloat32, d.batch, problem_.kvTokens(), d.kvHeads, d.headDim),
               sums.tensor(seqparFloat32, d.batch, problem_.kvTokens(), d.kvHeads, d.valueDim)};
    };
    sums.alternatives([&] { partial_ = takePartial(sums, problem_.tokens()); }, takeSums);
  }

  void open() override { block_->prepare(); }

  void forward(const seqparAttnForwardArgs_t& args) override {
    const Tensor out = outTensor(problem_, args.out);
    const Rows lse = lseRows(problem_, args.lse);
    const auto attention = block_->accumulate(partial_, out, lse);
    attention->add(blockInputs(problem_, args), rectangles_);
    attention->finish(sinks(args.sinks), out, lse);
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    const auto own = blockInputs(problem_, args);
    makeDelta(*block_, args, delta_);
    const Tensor dq = queryTensor(problem_, args.dq), dk = keyTensor(problem_, args.dk);
    const Tensor dv = valueTensor(problem_, args.dv);
    const auto sumDq = block_->accumulate(GradientOf::Queries, sums_.dq, dq);
    const auto sumDk = block_->accumulate(GradientOf::Keys, sums_.dk, dk);
    const auto sumDv = block_->accumulate(GradientOf::Values, sums_.dv, dv);
    block_->backward({own.q, own.k, own.v, outTensor(problem_, args.dOut), lseRows(problem_, args.lse), delta_,
                      outTensor(problem_, args.out)},
                     rectangles_, GradientAccumulators{*sumDq, *sumDk, *sumDv});
    sumDq->finish(dq);
    sumDk->finish(dk);
    sumDv->finish(dv);
  }

 private:
  std::vector<Rectangle> rectangles_;
  Partial partial_;
  Rows delta_;
  BlockGradients sums_;
};

}  // namespace

std::unique_ptr<Operator> makeLocal(const Problem& problem, Exec& exec) {
  return std::make_unique<LocalOperator>(problem, exec);
}

namespace {

Estimate estimateLocal(const Problem& problem) {
  const CostModel model(problem);
  double most = 0;
  for (int rank = 0; rank < model.ranks(); ++rank) most = std::max(most, model.scores(rank, rank));
  const auto shape = model.ownShape();
  return {model.blockUs(most, false, shape), model.blockUs(most, true, shape), 0};
}

const RegisteredAlgorithm kLocal({.id = seqparAttnLocal,
                                  .name = "local",
                                  .paper = "no exchange",
                                  .ownLayout = contiguousLayout,
                                  .estimate = estimateLocal,
                                  .make = makeLocal});

}  // namespace
}  // namespace seqpar::attn
