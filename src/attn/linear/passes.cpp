#include "attn/linear/passes.h"

#include "attn/linear/algorithms.h"

namespace seqpar::attn::linear {

std::string refuses(const Problem& problem) {
  if (problem.onDevice()) return "has no kernels for GPUs in this version";
  return {};
}

std::unique_ptr<Passes> makePasses(const Shard& shard, Exec& exec) {
  return makeHostPasses(shard, exec);
}

}  // namespace seqpar::attn::linear
