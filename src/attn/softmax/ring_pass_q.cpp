// RING_PASS_Q: context parallelism for inference (arXiv 2411.01783), section 3.3, "pass-Q": keys and values are
// stationary, queries rotate, and their partial outputs follow one hop behind. The backward pass, which the paper does
// not define, rotates queries like BURST.
#include <array>

#include "attn/softmax/query_gradients.h"
#include "attn/softmax/ring_cost.h"

namespace seqpar::attn {
namespace {

class RingPassQOperator final : public SoftmaxOperator {
 public:
  RingPassQOperator(const Problem& problem, Exec& exec)
      : SoftmaxOperator(problem, exec),
        rotation_(
            problem, exec, ringOrder(problem, problem.ranks(), true),
            {{problem.type(), problem.desc.heads, problem.desc.headDim}},
            {{seqparFloat32, problem.desc.heads, problem.desc.valueDim}, {seqparFloat32, problem.desc.heads, 0}}) {
    rectangles_.push_back(rotation_.rectangles(0));
    block_->expect(rectangles_[0], problem.tokens(), problem.kvTokens(), {true, false});
    for (int step = 1; step <= rotation_.order().steps; ++step) {
      rectangles_.push_back(rotation_.rectangles(step));
      block_->expect(rectangles_.back(), rotation_.tokens(rotation_.order().source(step)), problem.kvTokens(),
                     {true, false});
    }
    if (problem.training()) gradients_ = std::make_unique<QueryGradientRing>(problem, exec, *block_);
  }

  void carve(Arena& arena) override {
    block_->carve(arena);
    rotation_.carve(arena);
    own_ = takePartial(arena, problem_.tokens());
    partial_ = takePartial(arena, problem_.queries.longest());
    if (!gradients_) return;
    gradients_->carve(arena);
    delta_ = arena.rows(problem_.desc.batch, problem_.desc.heads, problem_.tokens());
  }

  void open() override {
    block_->prepare();
    rotation_.open();
    if (gradients_) gradients_->open();
  }

  void forward(const seqparAttnForwardArgs_t& args) override {
    const auto own = blockInputs(problem_, args);
    rotation_.begin(std::array{Rotation::Input(own.q)});
    Rotation::Turn turn;
    turn.compute = [&](int step) {
      const auto& seen = rectangles_[static_cast<size_t>(step)];
      const auto part = step == 0 ? own_ : partialOf(step);
      if (step > 0 && seen.empty()) return;
      clear(exec_, part);
      block_->forward({step == 0 ? own.q : rotation_.tensor(0), own.k, own.v}, seen, part);
    };
    turn.addSums = [&](int step, bool fresh) {
      const Partial sum{rotation_.sumTensor(0), rotation_.sumRows(1)};
      if (fresh) clear(exec_, sum);
      if (step > 0 && !rectangles_[static_cast<size_t>(step)].empty()) block_->merge(sum, partialOf(step));
    };
    rotation_.turn(turn);
    for (const auto& [others, first] : rotation_.homePartials(0, 1)) {
      const int64_t tokens = others.out.tokens;
      block_->merge({own_.out.rows(first, tokens), own_.lse.rows(first, tokens)}, others);
    }
    block_->finish(own_, sinks(args.sinks), outTensor(problem_, args.out), lseRows(problem_, args.lse));
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    makeDelta(*block_, args, delta_);
    gradients_->backward(args, blockInputs(problem_, args), delta_);
  }

 private:
  Partial partialOf(int step) const {
    const int64_t tokens = rotation_.tokens(rotation_.order().source(step));
    return {partial_.out.rows(0, tokens), partial_.lse.rows(0, tokens)};
  }

  Rotation rotation_;
  std::vector<std::vector<Rectangle>> rectangles_;  ///< [steps + 1], of the rotating ranges
  Partial own_, partial_;                           ///< of this rank's queries; of the queries of one step
  Rows delta_;
  std::unique_ptr<QueryGradientRing> gradients_;
};

std::string refusesRingPassQ(const Problem& problem) {
  if (problem.wireType() != seqparFloat32) return "sends partial outputs in fp32 only";
  return {};
}

Estimate estimateRingPassQ(const Problem& problem) {
  const CostModel model(problem);
  const double tokens = mostSent(problem, true);
  const auto& d = problem.desc;
  const RingTrip forward{problem.ranks(), true, false, model.qBytes(tokens),
                         model.bytes(tokens, d.heads, d.valueDim + 1, seqparFloat32)};
  return estimateTrips(model, forward, queriesBackward(model));
}

const RegisteredAlgorithm kRingPassQ({.id = seqparAttnRingPassQ,
                                      .name = "ring_pass_q",
                                      .paper = "Context Parallelism for Inference, arXiv 2411.01783, section 3.3",
                                      .refuses = refusesRingPassQ,
                                      .ownLayout = balancedLayout,
                                      .estimate = estimateRingPassQ,
                                      .make = makeOperator<RingPassQOperator>});

}  // namespace
}  // namespace seqpar::attn
