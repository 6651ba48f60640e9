// LASP, "Linear Attention Sequence Parallelism" (arXiv 2404.02882), Algorithms 2 and 3: states go from rank to rank,
// whole, and each rank waits for its own before it sends. On the same passes as the others, as a baseline.
#include "attn/linear/algorithms.h"
#include "attn/linear/operator.h"

namespace seqpar::attn::linear {
namespace {

class Lasp1 final : public LinearOperator {
 public:
  Lasp1(const Problem& problem, Exec& exec) : LinearOperator(problem, exec, false) {}

 private:
  void forwardAround(const Inputs& in, const seqparAttnForwardArgs_t& args) override {
    passes_->states(in, true);
    scanForward(seqparScanLasp1, args, exec_.main());
    passes_->outputs(in, out(args), incoming(args));
  }

  void backwardAround(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) override {
    passes_->stateGradients(in, gradients, true);
    scanBackward(seqparScanLasp1, args, exec_.main());
    passes_->recompute(in, args.saved);
    passes_->gradients(in, gradients, args.saved, behind());
  }
};

}  // namespace

std::unique_ptr<Operator> makeLasp1(const Problem& problem, Exec& exec) {
  return std::make_unique<Lasp1>(problem, exec);
}

}  // namespace seqpar::attn::linear
