// LOCAL: no exchange. Every rank's state begins with zeros, but for rank 0's: the bound of the others, and linear
// attention on one rank.
#include "attn/linear/algorithms.h"
#include "attn/linear/operator.h"

namespace seqpar::attn::linear {
namespace {

class Local final : public LinearOperator {
 public:
  Local(const Problem& problem, Exec& exec) : LinearOperator(problem, exec, true) {}

 private:
  void forwardAround(const Inputs&, const seqparAttnForwardArgs_t&) override {}
  void backwardAround(const Inputs&, const Gradients&, const seqparAttnBackwardArgs_t&) override {}
};

}  // namespace

std::unique_ptr<Operator> makeLocal(const Problem& problem, Exec& exec) {
  return std::make_unique<Local>(problem, exec);
}

}  // namespace seqpar::attn::linear
