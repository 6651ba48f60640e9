// BURST: BurstAttention (arXiv 2403.09347), section 3. Forward is RING's; backward is in query_gradients.cpp.
#include "attn/softmax/query_gradients.h"
#include "attn/softmax/ring.h"
#include "attn/softmax/ring_cost.h"

namespace seqpar::attn {
namespace {

class BurstOperator final : public RingOperator {
 public:
  BurstOperator(const Problem& problem, Exec& exec) : RingOperator(problem, exec, problem.ranks(), false) {
    if (problem.training()) gradients_ = std::make_unique<QueryGradientRing>(problem, exec, *block_);
  }

  void carve(Arena& arena) override {
    RingOperator::carve(arena);
    if (!gradients_) return;
    gradients_->carve(arena);
    delta_ = arena.rows(problem_.desc.batch, problem_.desc.heads, problem_.tokens());
  }

  void open() override {
    RingOperator::open();
    if (gradients_) gradients_->open();
  }

  void backward(const seqparAttnBackwardArgs_t& args) override {
    makeDelta(*block_, args, delta_);
    gradients_->backward(args, blockInputs(problem_, args), delta_);
  }

 private:
  std::unique_ptr<QueryGradientRing> gradients_;
  Rows delta_;
};

Estimate estimateBurst(const Problem& problem) {
  const CostModel model(problem);
  return estimateTrips(model, keysForward(model, problem.ranks()), queriesBackward(model));
}

const RegisteredAlgorithm kBurst({.id = seqparAttnBurst,
                                  .name = "burst",
                                  .paper = "BurstAttention, arXiv 2403.09347, section 3",
                                  .ownLayout = balancedLayout,
                                  .estimate = estimateBurst,
                                  .make = makeOperator<BurstOperator>});

}  // namespace
}  // namespace seqpar::attn
