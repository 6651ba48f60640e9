// LOCAL: no exchange. Every rank except rank 0 starts from a zero state: the upper bound of the other algorithms'
// speed, and linear attention on one rank.
#include "attn/linear/algorithms.h"
#include "attn/linear/operator.h"

namespace seqpar::attn::linear {

void LinearOperator::forwardAlone(const Inputs& in, const seqparAttnForwardArgs_t& args) {
  if (args.saved == nullptr) return passes_->forwardAlone(in, out(args), firstState(args), args.final);
  passes_->forwardAndSave(in, out(args), firstState(args), args.final, args.saved);
}

void LinearOperator::backwardAlone(const Inputs& in, const Gradients& gradients, const seqparAttnBackwardArgs_t& args) {
  passes_->backwardAlone(in, gradients, args.saved, lastGradient(args), firstGradient(args));
}

namespace {

class Local final : public LinearOperator {
 public:
  Local(const Problem& problem, Exec& exec) : LinearOperator(problem, exec, Exchange::None) {}

 private:
  void forwardAround(const Inputs&, const seqparAttnForwardArgs_t&) override {}
  void backwardAround(const Inputs&, const Gradients&, const seqparAttnBackwardArgs_t&) override {}
};

const RegisteredAlgorithm kLocalRow({.id = seqparAttnLocal,
                                     .name = "local",
                                     .paper = "no exchange",
                                     .softmax = false,
                                     .refuses = refuses,
                                     .ownLayout = contiguousLayout,
                                     .estimate = estimateLocal,
                                     .make = makeOperator<Local>});

}  // namespace
}  // namespace seqpar::attn::linear
