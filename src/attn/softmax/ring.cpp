// RING: Ring Attention (arXiv 2310.01889, section 3). ZIGZAG and STRIPED (Striped Attention, arXiv 2311.09431, section
// 3) are the same ring on layouts that balance causal masks.
#include "attn/softmax/ring.h"

#include "attn/softmax/algorithms.h"

namespace seqpar::attn {

RingOperator::RingOperator(const Problem& problem, Exec& exec, int inner, bool gradientsTravel)
    : SoftmaxOperator(problem, exec),
      rotation_(
          problem, exec, ringOrder(problem, inner, false),
          {{&problem.keys, problem.type(), problem.desc.kvHeads, problem.desc.headDim},
           {&problem.keys, problem.type(), problem.desc.kvHeads, problem.desc.valueDim}},
          problem.training() && gradientsTravel
              ? std::vector<Traveller>{{&problem.keys, problem.wireType(), problem.desc.kvHeads, problem.desc.headDim},
                                       {&problem.keys, problem.wireType(), problem.desc.kvHeads, problem.desc.valueDim}}
              : std::vector<Traveller>{}),
      gradientsTravel_(problem.training() && gradientsTravel) {
  block_->keepHere();
  const auto& order = rotation_.order();
  for (int step = 0; step <= order.steps; ++step) {
    rectangles_.push_back(problem.rectangles(problem.rank(), order.source(step)));
    block_->expect(rectangles_.back(), problem.tokens(), problem.keys.tokensOf(order.source(step)));
  }
}

void RingOperator::carve(Arena& arena) {
  block_->carve(arena);
  rotation_.carve(arena);
  partial_ = takePartial(arena, problem_.tokens());
  if (!gradientsTravel_) return;
  const auto& d = problem_.desc;
  delta_ = arena.rows(d.batch, d.heads, problem_.tokens());
  dq_ = arena.tensor(seqparFloat32, d.batch, problem_.tokens(), d.heads, d.headDim);
  dk_ = arena.tensor(seqparFloat32, d.batch, problem_.keys.longest(), d.kvHeads, d.headDim);
  dv_ = arena.tensor(seqparFloat32, d.batch, problem_.keys.longest(), d.kvHeads, d.valueDim);
}

void RingOperator::open() {
  block_->prepare();
  rotation_.open();
}

void RingOperator::load(const Tensor& k, const Tensor& v) {
  rotation_.reset();
  if (rotation_.order().steps == 0) return;
  exec_.copy(rotation_.ownTensor(0), k);
  exec_.copy(rotation_.ownTensor(1), v);
}

void RingOperator::forward(const seqparAttnForwardArgs_t& args) {
  const auto own = inputs(args);
  load(own.k, own.v);
  block_->clear(partial_);
  rotation_.turn([&](int step) {
    const auto& seen = rectangles_[static_cast<size_t>(step)];
    if (seen.empty()) return;
    block_->forward(step == 0 ? own : BlockInputs{own.q, rotation_.tensor(0), rotation_.tensor(1)}, seen, partial_);
  });
  block_->finish(partial_, sinks(args.sinks), outTensor(problem_, args.out), lseRows(problem_, args.lse));
}

void RingOperator::backward(const seqparAttnBackwardArgs_t& args) {
  const auto own = inputs(args);
  load(own.k, own.v);
  makeDelta(*block_, args, delta_);
  block_->clear(GradientOf::Queries, dq_);
  rotation_.turn(
      [&](int step) {
        const auto& seen = rectangles_[static_cast<size_t>(step)];
        if (seen.empty() && step > 0) return;
        const int64_t keys = problem_.keys.tokensOf(rotation_.order().source(step));
        const Tensor dk = dk_.rows(0, keys), dv = dv_.rows(0, keys);
        block_->clear(GradientOf::Keys, dk);
        block_->clear(GradientOf::Values, dv);
        BlockGradientInputs in{own.q,
                               step == 0 ? own.k : rotation_.tensor(0),
                               step == 0 ? own.v : rotation_.tensor(1),
                               outTensor(problem_, args.dOut),
                               lseRows(problem_, args.lse),
                               delta_,
                               outTensor(problem_, args.out)};
        block_->backward(in, seen, {dq_, dk, dv});
      },
      [&](int step) {
        const Tensor dk = rotation_.sumTensor(0), dv = rotation_.sumTensor(1);
        if (step == 0) {
          block_->finish(dk_.rows(0, dk.tokens), dk);
          block_->finish(dv_.rows(0, dv.tokens), dv);
        } else if (!rectangles_[static_cast<size_t>(step)].empty()) {
          block_->addTo(dk, dk_.rows(0, dk.tokens));
          block_->addTo(dv, dv_.rows(0, dv.tokens));
        }
      });
  block_->finish(dq_, queryTensor(problem_, args.dq));
  exec_.copy(keyTensor(problem_, args.dk), rotation_.homeTensor(0));
  exec_.copy(valueTensor(problem_, args.dv), rotation_.homeTensor(1));
}

std::string refusesZigzag(const Problem& problem) {
  if (problem.layoutGiven && problem.queries.kind() != seqparZigzag) return "runs on the zigzag layout only";
  return {};
}

std::string refusesStriped(const Problem& problem) {
  if (problem.layoutGiven && problem.queries.kind() != seqparStriped) return "runs on the striped layout only";
  return {};
}

std::unique_ptr<Operator> makeRing(const Problem& problem, Exec& exec) {
  return std::make_unique<RingOperator>(problem, exec, problem.ranks());
}

}  // namespace seqpar::attn
