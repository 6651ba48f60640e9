// ZeCO, "Zero Communication Overhead Sequence Parallelism for Linear Attention" (arXiv 2507.01004), Algorithms 1
// (forward) and 3 (backward). The corrections that both need are in docs/perf/linear_attention.md.
#include "attn/linear/algorithms.h"
#include "attn/linear/operator.h"

namespace seqpar::attn::linear {
namespace {

class Zeco final : public LinearOperator {
 public:
  Zeco(const Problem& problem, Exec& exec) : LinearOperator(problem, exec, false) {}

  void open() override {
    LinearOperator::open();
    openOwnScan();
  }

 private:
  // Algorithm 1: the rank's state from zero; All-Scan, beside it what tokens do to tokens of their own chunk, or other
  // heads; what the incoming state adds.
  void forwardAround(const Inputs& in, const seqparAttnForwardArgs_t& args) override {
    if (ownScan()) return forwardOwn(in, args);
    forwardBeside(seqparScanAuto, in, args);
  }

  // Algorithm 3: the gradient of the rank's incoming state from zero; All-Scan from the last rank to the first, beside
  // it the forward's states again, from the saved one and so without communication; all gradients. The gradient that
  // comes in also enters that of the decays, as the boundary of their sums over later tokens (Chunk::gateGradients()).
  void backwardAround(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) override {
    if (ownScan()) return backwardOwn(in, gradients, args);
    backwardBeside(seqparScanAuto, in, gradients, args);
  }
};

}  // namespace

std::unique_ptr<Operator> makeZeco(const Problem& problem, Exec& exec) {
  return std::make_unique<Zeco>(problem, exec);
}

}  // namespace seqpar::attn::linear
