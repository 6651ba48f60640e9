// BurstAttention (arXiv 2403.09347), section 3.2, "Backward communication optimization": keys, values and their
// gradients stay; queries, gradients of outputs and two numbers a row (lse, rowsum(dOut * out)) go round, and gradients
// of queries follow one hop behind. For as many key heads as query heads that is three tensors a hop in place of four.
#include "attn/softmax/query_gradients.h"

namespace seqpar::attn {
namespace {

std::vector<Traveller> travellers(const Problem& p, const Block& block) {
  const auto& d = p.desc;
  const Traveller rows{&p.queries, seqparFloat32, d.heads, 0};
  std::vector<Traveller> all{
      {&p.queries, p.type(), d.heads, d.headDim}, {&p.queries, p.type(), d.heads, d.valueDim}, rows};
  all.push_back(block.needsOut() ? Traveller{&p.queries, p.type(), d.heads, d.valueDim} : rows);
  return all;
}

}  // namespace

QueryGradientRing::QueryGradientRing(const Problem& problem, Exec& exec, Block& block)
    : problem_(problem),
      exec_(exec),
      block_(block),
      rotation_(problem, exec, ringOrder(problem, problem.ranks(), true), travellers(problem, block),
                {{&problem.queries, problem.wireType(), problem.desc.heads, problem.desc.headDim}}) {
  for (int step = 0; step <= rotation_.order().steps; ++step) {
    const int source = rotation_.order().source(step);
    rectangles_.push_back(problem.rectangles(source, problem.rank()));
    block.expect(rectangles_.back(), problem.queries.tokensOf(source), problem.kvTokens());
  }
}

void QueryGradientRing::carve(Arena& arena) {
  const auto& d = problem_.desc;
  rotation_.carve(arena);
  dq_ = arena.tensor(seqparFloat32, d.batch, problem_.queries.longest(), d.heads, d.headDim);
  dk_ = arena.tensor(seqparFloat32, d.batch, problem_.kvTokens(), d.kvHeads, d.headDim);
  dv_ = arena.tensor(seqparFloat32, d.batch, problem_.kvTokens(), d.kvHeads, d.valueDim);
}

void QueryGradientRing::backward(const seqparAttnBackwardArgs_t& args, const BlockInputs& own, const Rows& delta) {
  const Tensor out = outTensor(problem_, args.out), dOut = outTensor(problem_, args.dOut);
  const Rows lse = lseRows(problem_, args.lse);
  const bool withOut = block_.needsOut();
  rotation_.reset();
  if (rotation_.order().steps > 0) {
    exec_.copy(rotation_.ownTensor(0), own.q);
    exec_.copy(rotation_.ownTensor(1), dOut);
    exec_.copy(rotation_.ownRows(2), lse);
    if (withOut) {
      exec_.copy(rotation_.ownTensor(3), out);
    } else {
      exec_.copy(rotation_.ownRows(3), delta);
    }
  }
  exec_.zero(dk_);
  exec_.zero(dv_);
  rotation_.turn(
      [&](int step) {
        const auto& seen = rectangles_[static_cast<size_t>(step)];
        if (seen.empty() && step > 0) return;
        const Tensor dq = dq_.rows(0, problem_.queries.tokensOf(rotation_.order().source(step)));
        exec_.zero(dq);
        BlockGradientInputs in{own.q, own.k, own.v, dOut, lse, delta, out};
        if (step > 0) {
          in.q = rotation_.tensor(0);
          in.dOut = rotation_.tensor(1);
          in.lse = rotation_.rows(2);
          in.delta = withOut ? Rows{} : rotation_.rows(3);
          in.out = withOut ? rotation_.tensor(3) : Tensor{};
        }
        block_.backward(in, seen, {dq, dk_, dv_});
      },
      [&](int step) {
        const Tensor sum = rotation_.sumTensor(0);
        if (step == 0) {
          exec_.copy(sum, dq_.rows(0, sum.tokens));
        } else if (!rectangles_[static_cast<size_t>(step)].empty()) {
          exec_.add(sum, dq_.rows(0, sum.tokens));
        }
      });
  exec_.copy(queryTensor(problem_, args.dq), rotation_.homeTensor(0));
  exec_.copy(keyTensor(problem_, args.dk), dk_);
  exec_.copy(valueTensor(problem_, args.dv), dv_);
}

}  // namespace seqpar::attn
