// LASP-2 (arXiv 2502.07563), Algorithms 2 and 4: every rank gathers the states of all ranks, overlapped with its
// intra-chunk work, and combines the states of the ranks before it. A baseline on the common passes.
#include "attn/linear/algorithms.h"
#include "attn/linear/operator.h"

namespace seqpar::attn::linear {
namespace {

class Lasp2 final : public LinearOperator {
 public:
  Lasp2(const Problem& problem, Exec& exec) : LinearOperator(problem, exec, false) {}

 private:
  void forwardAround(const Inputs& in, const seqparAttnForwardArgs_t& args) override {
    forwardBeside(seqparScanLasp2, in, args);
  }

  void backwardAround(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) override {
    backwardBeside(seqparScanLasp2, in, gradients, args);
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
