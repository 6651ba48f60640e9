// LASP-2 (arXiv 2502.07563), Algorithms 2 and 4: every rank gathers the states of all ranks, overlapped with its
// intra-chunk work, and combines the states of the ranks before it. A baseline on the common passes.
#include "attn/linear/algorithms.h"
#include "attn/linear/operator.h"
#include "attn/linear/passes/beside.h"
#include "base/error.h"

namespace seqpar::attn::linear {
namespace {

class Lasp2 final : public LinearOperator {
 public:
  Lasp2(const Problem& problem, Exec& exec) : LinearOperator(problem, exec, Exchange::Scan) {}

 private:
  void forwardAround(const Inputs& in, const seqparAttnForwardArgs_t& args) override {
    passes_->states(in, mapUse(args));
    const float* const before = isFirst() ? firstState(args) : incoming(args);
    if (!passes_->worksBesideScan()) {
      scanForward(seqparScanLasp2, args, exec_.main());
      return passes_->outputs(in, out(args), before);
    }
    Beside beside(exec_);
    scanForward(seqparScanLasp2, args, exec_.side());
    passes_->besideScan(in);
    if (!isFirst()) beside.join();
    passes_->outputs(in, out(args), before);
    if (isFirst()) beside.join();
  }

  void backwardAround(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) override {
    passes_->stateGradients(in, gradients, mapUse(args));
    const bool last = isLast() && !problem_.packed();
    const float* const after = last ? lastGradient(args) : behind();
    if (!exec_.overlaps()) {
      recomputeAndScan(seqparScanLasp2, in, args);
      return passes_->gradients(in, gradients, args.saved, after);
    }
    Beside beside(exec_);
    scanBackward(seqparScanLasp2, args, exec_.side());
    passes_->recompute(in, args.saved);
    if (!last) beside.join();
    passes_->gradients(in, gradients, args.saved, after);
    if (last) beside.join();
  }
};

const RegisteredAlgorithm kLasp2Row({.id = seqparAttnLasp2,
                                     .name = "lasp2",
                                     .paper = "LASP-2, arXiv 2502.07563, Algorithms 2 and 4",
                                     .softmax = false,
                                     .refuses = refuses,
                                     .ownLayout = contiguousLayout,
                                     .estimate = estimateLasp2,
                                     .make = makeOperator<Lasp2>});

}  // namespace
}  // namespace seqpar::attn::linear
