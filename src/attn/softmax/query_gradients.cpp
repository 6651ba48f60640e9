// BurstAttention (arXiv 2403.09347), section 3.2, "Backward communication optimization": keys, values and their
// gradients are stationary; queries, gradients of outputs and two values per row (lse, rowsum(dOut * out)) rotate, and
// gradients of queries follow one hop behind. With equal numbers of key and query heads that is three tensors per hop
// instead of four.
#include "attn/softmax/query_gradients.h"

#include <array>

namespace seqpar::attn {
namespace {

std::vector<RingTensor> ringTensors(const Problem& p, const Block& block) {
  const auto& d = p.desc;
  const RingTensor rows{seqparFloat32, d.heads, 0};
  std::vector<RingTensor> all{{p.type(), d.heads, d.headDim}, {p.type(), d.heads, d.valueDim}, rows};
  all.push_back(block.needsOut() ? RingTensor{p.type(), d.heads, d.valueDim} : rows);
  return all;
}

}  // namespace

QueryGradientRing::QueryGradientRing(const Problem& problem, Exec& exec, Block& block)
    : problem_(problem),
      exec_(exec),
      block_(block),
      rotation_(problem, exec, ringOrder(problem, problem.ranks(), true), ringTensors(problem, block),
                {{problem.wireType(), problem.desc.heads, problem.desc.headDim}}) {
  rectangles_.push_back(rotation_.rectangles(0));
  block.expect(rectangles_[0], problem.tokens(), problem.kvTokens(), {false, true});
  for (int step = 1; step <= rotation_.order().steps; ++step) {
    rectangles_.push_back(rotation_.rectangles(step));
    block.expect(rectangles_.back(), rotation_.tokens(rotation_.order().source(step)), problem.kvTokens(),
                 {false, true});
  }
}

void QueryGradientRing::carve(Arena& arena) {
  const auto& d = problem_.desc;
  rotation_.carve(arena);
  ownDq_ = arena.tensor(seqparFloat32, d.batch, problem_.tokens(), d.heads, d.headDim);
  dq_ = arena.tensor(seqparFloat32, d.batch, problem_.queries.longest(), d.heads, d.headDim);
  dk_ = arena.tensor(seqparFloat32, d.batch, problem_.kvTokens(), d.kvHeads, d.headDim);
  dv_ = arena.tensor(seqparFloat32, d.batch, problem_.kvTokens(), d.kvHeads, d.valueDim);
}

void QueryGradientRing::backward(const seqparAttnBackwardArgs_t& args, const BlockInputs& own, const Rows& delta) {
  const Tensor out = outTensor(problem_, args.out), dOut = outTensor(problem_, args.dOut);
  const Rows lse = lseRows(problem_, args.lse);
  const bool withOut = block_.needsOut();
  using Input = Rotation::Input;
  rotation_.begin(std::array{Input(own.q), Input(dOut), Input(lse), withOut ? Input(out) : Input(delta)});
  exec_.zero(ownDq_);
  exec_.zero(dk_);
  exec_.zero(dv_);
  Rotation::Turn turn;
  turn.compute = [&](int step) {
    const auto& seen = rectangles_[static_cast<size_t>(step)];
    if (seen.empty()) return;
    if (step == 0) return block_.backward({own.q, own.k, own.v, dOut, lse, delta, out}, seen, {ownDq_, dk_, dv_});
    const BlockGradientInputs in{rotation_.tensor(0),
                                 own.k,
                                 own.v,
                                 rotation_.tensor(1),
                                 rotation_.rows(2),
                                 withOut ? Rows{} : rotation_.rows(3),
                                 withOut ? rotation_.tensor(3) : Tensor{}};
    const Tensor dq = dq_.rows(0, in.q.tokens);
    exec_.zero(dq);
    block_.backward(in, seen, {dq, dk_, dv_});
  };
  turn.addSums = [&](int step, bool fresh) {
    const Tensor sum = rotation_.sumTensor(0);
    const bool none = step == 0 || rectangles_[static_cast<size_t>(step)].empty();
    if (none && fresh) {
      exec_.zero(sum);
    } else if (fresh) {
      exec_.copy(sum, dq_.rows(0, sum.tokens));
    } else if (!none) {
      exec_.add(sum, dq_.rows(0, sum.tokens));
    }
  };
  rotation_.turn(turn);
  block_.finishSum(ownDq_, rotation_.homeAddends(0), queryTensor(problem_, args.dq));
  exec_.copy(keyTensor(problem_, args.dk), dk_);
  exec_.copy(valueTensor(problem_, args.dv), dv_);
}

}  // namespace seqpar::attn
