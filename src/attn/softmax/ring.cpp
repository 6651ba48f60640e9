// RING: Ring Attention (arXiv 2310.01889, section 3). ZIGZAG and STRIPED (Striped Attention, arXiv 2311.09431, section
// 3) are the same ring on layouts that balance causal masks.
#include "attn/softmax/ring.h"
#include "attn/softmax/ring_cost.h"

#include <array>

namespace seqpar::attn {
namespace {

/// The rotating gradients of keys and values.
std::vector<RingTensor> gradients(const Problem& problem, const RingOrder& order) {
  const auto type = ringSumType(problem, order);
  return {{type, problem.desc.kvHeads, problem.desc.headDim}, {type, problem.desc.kvHeads, problem.desc.valueDim}};
}

}  // namespace

// One half. Halves of a band would cost more than they hide: the second half does not start at the band's diagonal, and
// a block's kernel may compute it as if there were no window.
double lateShareOfRing(const Problem& problem) {
  return problem.windowed() ? 0 : 0.5;
}

seqparDataType_t ringSumType(const Problem& problem, const RingOrder& order) {
  // With one hop a sum is the contribution of one rank, which may be the result of one block call.
  if (order.steps != 1 || order.firstSum() != 1) return problem.wireType();
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    if (!singleShares(problem, problem.rectangles(rank, order.sourceOf(rank, 1)))) return problem.wireType();
  }
  return typeOfSingleShare(problem);
}

RingOperator::RingOperator(const Problem& problem, Exec& exec, int inner, bool gradientsRotate)
    : SoftmaxOperator(problem, exec),
      rotation_(problem, exec, ringOrder(problem, inner, false),
                {{problem.type(), problem.desc.kvHeads, problem.desc.headDim},
                 {problem.type(), problem.desc.kvHeads, problem.desc.valueDim}},
                problem.training() && gradientsRotate ? gradients(problem, ringOrder(problem, inner, false))
                                                      : std::vector<RingTensor>{}),
      gradientsRotate_(problem.training() && gradientsRotate) {
  const auto& order = rotation_.order();
  const int64_t rows = problem.tokens(), keys = problem.kvTokens();
  rectangles_.push_back(rotation_.rectangles(0));
  if (!gradientsRotate_) {
    block_->expect(rectangles_[0], rows, keys, {.accumulated = true});
  } else {
    // With few tokens two parts cost more than they hide.
    constexpr int64_t kFew = 128;
    const bool parts = order.steps > 0 && rows >= kFew;
    auto late = parts ? static_cast<int64_t>(static_cast<double>(rows) * lateShareOfRing(problem)) : 0;
    // Prefer a border between packed sequences: a sequence in two parts needs one more call.
    if (late > 0) late = rows - rowBetween(rectangles_[0], rows / 4, rows - late, rows - rows / 4);
    early_ = ofRows(rectangles_[0], 0, rows - late);
    late_ = ofRows(rectangles_[0], rows - late, late);
    block_->expect(rectangles_[0], rows, keys, {true, false, true});
    block_->expect(early_, rows, keys, {false, true, true});
    if (!late_.empty()) block_->expect(late_, rows, keys, {false, true, true});
  }
  for (int step = 1; step <= order.steps; ++step) {
    rectangles_.push_back(rotation_.rectangles(step));
    block_->expect(rectangles_.back(), rows, rotation_.tokens(order.source(step)), {true, gradientsRotate_, true});
  }
}

void RingOperator::carve(Arena& arena) {
  block_->carve(arena);
  rotation_.carve(arena);
  partial_ = takePartial(arena, problem_.tokens());
  if (!gradientsRotate_) return;
  const auto& d = problem_.desc;
  delta_ = arena.rows(d.batch, d.heads, problem_.tokens());
  dq_ = arena.tensor(seqparFloat32, d.batch, problem_.tokens(), d.heads, d.headDim);
  ownDk_ = arena.tensor(seqparFloat32, d.batch, problem_.kvTokens(), d.kvHeads, d.headDim);
  ownDv_ = arena.tensor(seqparFloat32, d.batch, problem_.kvTokens(), d.kvHeads, d.valueDim);
  if (rotation_.order().steps == 0) return;
  dk_ = arena.tensor(seqparFloat32, d.batch, problem_.keys.longest(), d.kvHeads, d.headDim);
  dv_ = arena.tensor(seqparFloat32, d.batch, problem_.keys.longest(), d.kvHeads, d.valueDim);
}

void RingOperator::open() {
  block_->prepare();
  rotation_.open();
}

void RingOperator::load(const Tensor& k, const Tensor& v) {
  const std::array<Rotation::Input, 2> own{k, v};
  rotation_.begin(own);
}

void RingOperator::forward(const seqparAttnForwardArgs_t& args) {
  forward(args, outTensor(problem_, args.out));
}

void RingOperator::forward(const seqparAttnForwardArgs_t& args, const Tensor& out) {
  const auto own = blockInputs(problem_, args);
  load(own.k, own.v);
  const Rows lse = lseRows(problem_, args.lse);
  const auto attention = block_->accumulate(partial_, out, lse);
  rotation_.turn({[&](int step) {
    const auto& seen = rectangles_[static_cast<size_t>(step)];
    if (seen.empty()) return;
    attention->add(step == 0 ? own : BlockInputs{own.q, rotation_.tensor(0), rotation_.tensor(1)}, seen);
  }});
  attention->finish(sinks(args.sinks), out, lse);
}

void RingOperator::addGradients(int step, std::span<const Rectangle> seen, const BlockInputs& own,
                                const seqparAttnBackwardArgs_t& args, const GradientAccumulators& into) {
  BlockGradientInputs in{own.q,
                         step == 0 ? own.k : rotation_.tensor(0),
                         step == 0 ? own.v : rotation_.tensor(1),
                         outTensor(problem_, args.dOut),
                         lseRows(problem_, args.lse),
                         delta_,
                         outTensor(problem_, args.out)};
  block_->backward(in, seen, into);
}

void RingOperator::backward(const seqparAttnBackwardArgs_t& args) {
  backward(args, {queryTensor(problem_, args.dq), keyTensor(problem_, args.dk), valueTensor(problem_, args.dv)});
}

void RingOperator::backward(const seqparAttnBackwardArgs_t& args, const BlockGradients& to) {
  const auto own = blockInputs(problem_, args);
  load(own.k, own.v);
  makeDelta(*block_, args, delta_);
  const auto dq = block_->accumulate(GradientOf::Queries, dq_, to.dq);
  std::unique_ptr<GradientAccumulator> ownDk, ownDv, dk, dv;  // dk, dv: of one step
  Rotation::Turn turn;
  turn.compute = [&](int step) {
    const auto& seen = rectangles_[static_cast<size_t>(step)];
    if (step == 0) {
      // The own gradients may stay in the outputs, and the only contribution to a sum in the send buffer.
      ownDk = block_->accumulate(GradientOf::Keys, ownDk_, to.dk);
      ownDv = block_->accumulate(GradientOf::Values, ownDv_, to.dv);
      return addGradients(0, early_, own, args, {*dq, *ownDk, *ownDv});
    }
    if (seen.empty()) return;
    const int64_t keys = rotation_.tensor(0).tokens;
    const auto& order = rotation_.order();
    const bool only = order.steps == order.firstSum();
    dk = block_->accumulate(GradientOf::Keys, dk_.rows(0, keys), only ? rotation_.sumTensor(0) : Tensor{});
    dv = block_->accumulate(GradientOf::Values, dv_.rows(0, keys), only ? rotation_.sumTensor(1) : Tensor{});
    addGradients(step, seen, own, args, {*dq, *dk, *dv});
  };
  turn.addSums = [&](int step, bool fresh) {
    const Tensor sumK = rotation_.sumTensor(0), sumV = rotation_.sumTensor(1);
    const bool none = step == 0 || rectangles_[static_cast<size_t>(step)].empty();
    if (none && fresh) {
      exec_.zero(sumK);
      exec_.zero(sumV);
    } else if (fresh) {
      dk->finish(sumK);
      dv->finish(sumV);
    } else if (!none) {
      dk->addTo(sumK);
      dv->addTo(sumV);
    }
  };
  turn.meanwhile = [&] {
    if (!late_.empty()) addGradients(0, late_, own, args, {*dq, *ownDk, *ownDv});
    dq->finish(to.dq);
  };
  rotation_.turn(turn);
  ownDk->finish(rotation_.homeAddends(0), to.dk);
  ownDv->finish(rotation_.homeAddends(1), to.dv);
}

namespace {

std::string refusesZigzag(const Problem& problem) {
  if (problem.hasLayout && problem.queries.kind() != seqparZigzag) return "runs on the zigzag layout only";
  return {};
}

std::string refusesStriped(const Problem& problem) {
  if (problem.hasLayout && problem.queries.kind() != seqparStriped) return "runs on the striped layout only";
  return {};
}

Estimate estimateRing(const Problem& problem) {
  const CostModel model(problem);
  return estimateTrips(model, keysForward(model, problem.ranks()), keysBackward(model, problem.ranks()));
}

std::unique_ptr<Operator> makeRing(const Problem& problem, Exec& exec) {
  return std::make_unique<RingOperator>(problem, exec, problem.ranks());
}

const RegisteredAlgorithm kRing({.id = seqparAttnRing,
                                 .name = "ring",
                                 .paper = "Ring Attention, arXiv 2310.01889, section 3",
                                 .ownLayout = contiguousLayout,
                                 .estimate = estimateRing,
                                 .make = makeRing});
const RegisteredAlgorithm kZigzag({.id = seqparAttnZigzag,
                                   .name = "zigzag",
                                   .paper = "Ring Attention on the zigzag layout",
                                   .refuses = refusesZigzag,
                                   .ownLayout = zigzagLayout,
                                   .estimate = estimateRing,
                                   .make = makeRing});
const RegisteredAlgorithm kStriped({.id = seqparAttnStriped,
                                    .name = "striped",
                                    .paper = "Striped Attention, arXiv 2311.09431, section 3",
                                    .refuses = refusesStriped,
                                    .ownLayout = stripedLayout,
                                    .estimate = estimateRing,
                                    .make = makeRing});

}  // namespace
}  // namespace seqpar::attn
