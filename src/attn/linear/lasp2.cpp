// LASP-2 (arXiv 2502.07563), Algorithms 2 and 4: every rank gathers the states of all ranks, beside its work within
// chunks, and combines those before its own. On the same passes as the others, as a baseline.
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

}  // namespace

std::unique_ptr<Operator> makeLasp2(const Problem& problem, Exec& exec) {
  return std::make_unique<Lasp2>(problem, exec);
}

}  // namespace seqpar::attn::linear
