// LASP, "Linear Attention Sequence Parallelism" (arXiv 2404.02882), Algorithms 2 and 3: whole states are sent from rank
// to rank, and each rank waits for its incoming state before it sends. A baseline on the common passes.
#include "attn/linear/algorithms.h"
#include "attn/linear/operator.h"

namespace seqpar::attn::linear {
namespace {

class Lasp1 final : public LinearOperator {
 public:
  Lasp1(const Problem& problem, Exec& exec) : LinearOperator(problem, exec, Exchange::Scan) {}

 private:
  void forwardAround(const Inputs& in, const seqparAttnForwardArgs_t& args) override {
    passes_->states(in, MapUse::Whole);
    scanForward(seqparScanLasp1, args, exec_.main());
    passes_->outputs(in, out(args), incoming(args));
  }

  void backwardAround(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) override {
    passes_->stateGradients(in, gradients, MapUse::Whole);
    scanBackward(seqparScanLasp1, args, exec_.main());
    passes_->recompute(in, args.saved);
    passes_->gradients(in, gradients, args.saved, behind());
  }
};

const RegisteredAlgorithm kLasp1Row({.id = seqparAttnLasp1,
                                     .name = "lasp1",
                                     .paper = "LASP, arXiv 2404.02882, Algorithms 2 and 3",
                                     .softmax = false,
                                     .refuses = refuses,
                                     .ownLayout = contiguousLayout,
                                     .estimate = estimateLasp1,
                                     .make = makeOperator<Lasp1>});

}  // namespace
}  // namespace seqpar::attn::linear
