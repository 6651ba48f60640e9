// RING_SELF_ATTENTION: Ring Self-Attention (arXiv 2105.13120, section 3.2): keys rotate, then values. The paper
// stores the scores of all keys in between, in memory quadratic in the length; this implementation stores the keys and
// computes their scores when the values arrive. Sums of both gradients follow the values.
#include <array>

#include "attn/softmax/base.h"
#include "attn/softmax/ring.h"
#include "attn/softmax/ring_cost.h"
#include "attn/softmax/rotation.h"

namespace seqpar::attn {
namespace {

class RingSelfAttentionOperator final : public SoftmaxOperator {
 public:
  RingSelfAttentionOperator(const Problem& problem, Exec& exec)
      : SoftmaxOperator(problem, exec),
        keysRound_(problem, exec, ringOrder(problem, problem.ranks(), false), {keys(problem.type())}, {}),
        valuesRound_(problem, exec, keysRound_.order(), {values(problem.type())}, sums()) {
    rectangles_.push_back(valuesRound_.rectangles(0));
    block_->expect(rectangles_[0], problem.tokens(), problem.kvTokens(), {.accumulated = true});
    for (int step = 1; step <= order().steps; ++step) {
      rectangles_.push_back(valuesRound_.rectangles(step));
      block_->expect(rectangles_.back(), problem.tokens(), valuesRound_.tokens(order().source(step)),
                     {.accumulated = true});
    }
  }

  void carve(Arena& arena) override {
    const auto& d = problem_.desc;
    block_->carve(arena);
    keysRound_.carve(arena);
    valuesRound_.carve(arena);
    partial_ = takePartial(arena, problem_.tokens());
    kept_.assign(rectangles_.size(), {});
    for (int step = 1; step <= order().steps; ++step) {
      kept_[static_cast<size_t>(step)] =
          arena.tensor(problem_.type(), d.batch, valuesRound_.tokens(order().source(step)), d.kvHeads, d.headDim);
    }
    if (!problem_.training()) return;
    delta_ = arena.rows(d.batch, d.heads, problem_.tokens());
    dq_ = arena.tensor(seqparFloat32, d.batch, problem_.tokens(), d.heads, d.headDim);
    const auto pair = [&](int64_t tokens) {
      return Pair{arena.tensor(seqparFloat32, d.batch, tokens, d.kvHeads, d.headDim),
                  arena.tensor(seqparFloat32, d.batch, tokens, d.kvHeads, d.valueDim)};
    };
    own_ = pair(problem_.kvTokens());
    if (order().steps > 0) step_ = pair(problem_.keys.longest());
  }

  void open() override {
    block_->prepare();
    keysRound_.open();
    valuesRound_.open();
  }

  void forward(const seqparAttnForwardArgs_t& args) override {
    const auto own = blockInputs(problem_, args);
    const Tensor out = outTensor(problem_, args.out);
    const Rows lse = lseRows(problem_, args.lse);
    begin(own);
    const auto attention = block_->accumulate(partial_, out, lse);
    valuesRound_.turn({[&](int step) { attention->add(at(step, own), seen(step)); }});
    attention->finish(sinks(args.sinks), out, lse);
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    const auto own = blockInputs(problem_, args);
    const Tensor dq = queryTensor(problem_, args.dq);
    makeDelta(*block_, args, delta_);
    begin(own);
    const auto sumQ = block_->accumulate(GradientOf::Queries, dq_, dq);
    AccumulatorPair ofOwn, ofStep;
    Rotation::Turn turn;
    turn.compute = [&](int step) {
      const auto in = at(step, own);
      const auto [dk, dv] = sumsOf(step, in.k.tokens);
      auto& sums = step == 0 ? ofOwn : ofStep;
      sums = {block_->accumulate(GradientOf::Keys, dk), block_->accumulate(GradientOf::Values, dv)};
      block_->backward({in.q, in.k, in.v, outTensor(problem_, args.dOut), lseRows(problem_, args.lse), delta_,
                        outTensor(problem_, args.out)},
                       seen(step), GradientAccumulators{*sumQ, *sums.k, *sums.v});
    };
    turn.addSums = [&](int step, bool fresh) {
      const auto& shares = step == 0 ? ofOwn : ofStep;
      add(valuesRound_.sumTensor(0), *shares.k, fresh);
      add(valuesRound_.sumTensor(1), *shares.v, fresh);
    };
    turn.meanwhile = [&] { sumQ->finish(dq); };
    valuesRound_.turn(turn);
    ofOwn.k->finish(valuesRound_.homeAddends(0), keyTensor(problem_, args.dk));
    ofOwn.v->finish(valuesRound_.homeAddends(1), valueTensor(problem_, args.dv));
  }

 private:
  struct Pair {
    Tensor k, v;
  };
  struct AccumulatorPair {
    std::unique_ptr<GradientAccumulator> k, v;
  };

  RingTensor keys(seqparDataType_t type) const { return {type, problem_.desc.kvHeads, problem_.desc.headDim}; }
  RingTensor values(seqparDataType_t type) const { return {type, problem_.desc.kvHeads, problem_.desc.valueDim}; }
  std::vector<RingTensor> sums() const {
    if (!problem_.training()) return {};
    const auto type = ringSumType(problem_, order());
    return {keys(type), values(type)};
  }

  const RingOrder& order() const { return keysRound_.order(); }
  std::span<const Rectangle> seen(int step) const { return rectangles_[static_cast<size_t>(step)]; }

  /// Receives all keys, and starts the rotation of the values.
  void begin(const BlockInputs& own) {
    keysRound_.begin(std::array<Rotation::Input, 1>{own.k});
    keysRound_.turn({[&](int step) {
      if (step > 0) exec_.copy(kept_[static_cast<size_t>(step)], keysRound_.tensor(0));
    }});
    valuesRound_.begin(std::array<Rotation::Input, 1>{own.v});
  }

  BlockInputs at(int step, const BlockInputs& own) const {
    return step == 0 ? own : BlockInputs{own.q, kept_[static_cast<size_t>(step)], valuesRound_.tensor(0)};
  }
  Pair sumsOf(int step, int64_t tokens) const {
    return step == 0 ? own_ : Pair{step_.k.rows(0, tokens), step_.v.rows(0, tokens)};
  }
  static void add(const Tensor& sum, GradientAccumulator& share, bool fresh) {
    if (fresh) {
      share.finish(sum);
    } else {
      share.addTo(sum);
    }
  }

  Rotation keysRound_, valuesRound_;
  std::vector<std::vector<Rectangle>> rectangles_;  ///< [steps + 1], of the rotating ranges
  std::vector<Tensor> kept_;                        ///< [steps + 1]: keys, except this rank's own
  Partial partial_;
  Rows delta_;
  Tensor dq_;
  Pair own_, step_;  ///< backward: gradients of this rank's keys and values, and of those of one step
};

Estimate estimateRingSelfAttention(const Problem& problem) {
  const CostModel model(problem);
  const double tokens = mostSent(problem, false);
  const double keys = model.bytes(tokens, problem.desc.kvHeads, problem.desc.headDim, problem.type());
  // The rotation of keys has no overlap.
  const RingTrip alone{problem.ranks(), false, false, keys};
  const double keysUs =
      ringOrder(problem, problem.ranks(), false).steps * (model.sendUs(keys) + model.memoryUs(2 * keys));
  RingTrip forward = keysForward(model, problem.ranks()), backward = keysBackward(model, problem.ranks());
  forward.inputBytes -= keys;
  backward.inputBytes -= keys;
  backward.late = 0;
  auto estimate = estimateTrips(model, forward, backward);
  estimate.forwardUs += keysUs;
  estimate.backwardUs += keysUs;
  estimate.bytes += 2 * tripBytes(model, alone);
  return estimate;
}

const RegisteredAlgorithm kRingSelfAttention({.id = seqparAttnRingSelfAttention,
                                              .name = "ring_self_attention",
                                              .paper = "Ring Self-Attention, arXiv 2105.13120, section 3.2",
                                              .ownLayout = balancedLayout,
                                              .estimate = estimateRingSelfAttention,
                                              .make = makeOperator<RingSelfAttentionOperator>});

}  // namespace
}  // namespace seqpar::attn
