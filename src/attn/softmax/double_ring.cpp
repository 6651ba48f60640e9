// DOUBLE_RING: LoongTrain (arXiv 2406.18485), "Double-Ring-Attention": RING whose ranks form windows. Tensors go round
// a window, and once for each window they go on to the next one, which they begin as soon as the inner ring does.
#include "attn/softmax/algorithms.h"
#include "attn/softmax/ring.h"

namespace seqpar::attn {

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

std::unique_ptr<Operator> makeDoubleRing(const Problem& problem, Exec& exec) {
  return std::make_unique<RingOperator>(problem, exec, windowOf(problem));
}

}  // namespace seqpar::attn
