// ZeCO, "Zero Communication Overhead Sequence Parallelism for Linear Attention" (arXiv 2507.01004), Algorithms 1
// (forward) and 3 (backward). The corrections that both need are in docs/linear_attention.md.
#include "attn/linear/algorithms.h"
#include "attn/linear/operator.h"
#include "attn/linear/passes/beside.h"

namespace seqpar::attn::linear {
namespace {

class Zeco final : public LinearOperator {
 public:
  Zeco(const Problem& problem, Exec& exec) : LinearOperator(problem, exec, Exchange::ScanOrRelay) {}

  void open() override {
    LinearOperator::open();
    openOwnScan();
  }

 private:
  // Algorithm 1: the rank's state from zero; All-Scan, overlapped with each chunk's intra-chunk part; then the
  // contribution of the incoming state. The first rank knows its incoming state: its scan overlaps with its outputs. On
  // GPUs that map each other's memory, forwardWithScan() is this order as launches, the scan being one of them. On
  // hosts with more heads than ranks, it is a pipeline of heads (host/relay.h), without a second pass over the tokens.
  void forwardAround(const Inputs& in, const seqparAttnForwardArgs_t& args) override {
    if (ownScans().forward) return passes_->forwardWithScan(in, out(args), ownScan(args));
    passes_->states(in, mapUse(args));
    const float* const before = isFirst() ? firstState(args) : incoming(args);
    if (!passes_->worksBesideScan()) {
      // Also on the first rank: other ranks wait for its scan, and concurrent outputs would leave it few SMs.
      scanForward(seqparScanAuto, args, exec_.main());
      return passes_->outputs(in, out(args), before);
    }
    Beside beside(exec_);
    scanForward(seqparScanAuto, args, exec_.side());
    passes_->besideScan(in);
    if (!isFirst()) beside.join();
    passes_->outputs(in, out(args), before);
    if (isFirst()) beside.join();
  }

  // Algorithm 3: the gradient of the rank's incoming state from zero; All-Scan from the last rank to the first,
  // overlapped with the recomputation of the forward's states from the saved one, which needs no communication; then
  // all gradients. The incoming gradient also contributes to the decays' gradients, as the boundary of their sums over
  // later tokens (Chunk::gateGradients()). The last rank knows its incoming gradient, unless sequences are packed.
  void backwardAround(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) override {
    if (ownScans().backward) return passes_->backwardWithScan(in, gradients, args.saved, ownScan(args));
    passes_->stateGradients(in, gradients, mapUse(args));
    const bool last = isLast() && !problem_.packed();
    const float* const after = last ? lastGradient(args) : behind();
    if (!exec_.overlaps()) {
      recomputeAndScan(seqparScanAuto, in, args);
      return passes_->gradients(in, gradients, args.saved, after);
    }
    Beside beside(exec_);
    scanBackward(seqparScanAuto, args, exec_.side());
    passes_->recompute(in, args.saved);
    if (!last) beside.join();
    passes_->gradients(in, gradients, args.saved, after);
    if (last) beside.join();
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
