// ZeCO, "Zero Communication Overhead Sequence Parallelism for Linear Attention" (arXiv 2507.01004), Algorithms 1
// (forward) and 3 (backward). The corrections that both need are in docs/linear_attention.md.
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
  // Algorithm 1: the rank's state from zero; All-Scan, overlapped with each chunk's intra-chunk part or with other
  // heads; then the contribution of the incoming state.
  void forwardAround(const Inputs& in, const seqparAttnForwardArgs_t& args) override {
    if (ownScan()) return forwardOwn(in, args);
    forwardBeside(seqparScanAuto, in, args);
  }

  // Algorithm 3: the gradient of the rank's incoming state from zero; All-Scan from the last rank to the first,
  // overlapped with the recomputation of the forward's states from the saved one, which needs no communication; then
  // all gradients. The incoming gradient also contributes to the decays' gradients, as the boundary of their sums over
  // later tokens (Chunk::gateGradients()).
  void backwardAround(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) override {
    if (ownScan()) return backwardOwn(in, gradients, args);
    backwardBeside(seqparScanAuto, in, gradients, args);
  }
};

const RegisteredAlgorithm kZecoRow({.id = seqparAttnZeco,
                                    .name = "zeco",
                                    .paper = "ZeCO, arXiv 2507.01004, Algorithms 1 and 3",
                                    .softmax = false,
                                    .refuses = refuses,
                                    .ownLayout = contiguousLayout,
                                    .estimate = estimateZeco,
                                    .make = makeOperator<Zeco>});

}  // namespace
}  // namespace seqpar::attn::linear
