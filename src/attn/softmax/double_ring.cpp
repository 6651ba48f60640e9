// DOUBLE_RING: LoongTrain (arXiv 2406.18485), "Double-Ring-Attention": RING with windows of ranks. Tensors rotate
// inside a window, and once per window move to the next one; that transfer starts together with the inner ring.
#include "attn/softmax/ring.h"
#include "attn/softmax/ring_cost.h"

namespace seqpar::attn {
namespace {

int windowOf(const Problem& problem) {
  const int ranks = problem.ranks(), nodes = problem.info.nodes;
  if (problem.desc.inner != 0) return static_cast<int>(problem.desc.inner);
  if (nodes > 1 && ranks % nodes == 0) return ranks / nodes;
  int inner = 1;  // the divisor below the square root: the fewest steps that wait for another window
  for (int divisor = 1; divisor * divisor <= ranks; ++divisor) {
    if (ranks % divisor == 0) inner = ranks / divisor;
  }
  return inner;
}

Estimate estimateDoubleRing(const Problem& problem) {
  const CostModel model(problem);
  const int inner = windowOf(problem);
  return estimateTrips(model, keysForward(model, inner), keysBackward(model, inner));
}

std::unique_ptr<Operator> makeDoubleRing(const Problem& problem, Exec& exec) {
  return std::make_unique<RingOperator>(problem, exec, windowOf(problem));
}

const RegisteredAlgorithm kDoubleRing({.id = seqparAttnDoubleRing,
                                       .name = "double_ring",
                                       .paper = "LoongTrain, arXiv 2406.18485, Double-Ring-Attention",
                                       .ownLayout = balancedLayout,
                                       .estimate = estimateDoubleRing,
                                       .make = makeDoubleRing});

}  // namespace
}  // namespace seqpar::attn
