#include "attn/problem/algorithm.h"

namespace seqpar::attn {

constinit const RegisteredAlgorithm* RegisteredAlgorithm::first_ = nullptr;

std::string refusesNothing(const Problem&) {
  return {};
}

seqparLayoutKind_t balancedLayout(const Problem& problem) {
  return problem.desc.mask == seqparAttnCausal && !problem.windowed() ? seqparZigzag : seqparContiguous;
}

seqparLayoutKind_t contiguousLayout(const Problem&) {
  return seqparContiguous;
}

seqparLayoutKind_t zigzagLayout(const Problem&) {
  return seqparZigzag;
}

seqparLayoutKind_t stripedLayout(const Problem&) {
  return seqparStriped;
}

}  // namespace seqpar::attn
