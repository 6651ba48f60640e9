// The choice between the implementations of the passes.
#include "attn/linear/passes/passes.h"

#include <algorithm>

#include "attn/linear/algorithms.h"
#include "attn/linear/operator.h"
#include "base/error.h"

namespace seqpar::attn::linear {

std::string refuses(const Problem& problem) {
  if (!problem.onDevice()) return {};
#ifdef SEQPAR_ATTN_CUDA
  const auto& d = problem.desc;
  Shard shard;
  const auto size = [](int64_t value) { return static_cast<size_t>(value); };
  shard.family = findFamily(d.family);
  shard.batch = size(d.batch);
  shard.heads = size(d.heads);
  shard.keyHeads = size(d.kvHeads);
  shard.dk = size(d.headDim);
  shard.dv = size(d.valueDim);
  shard.type = problem.type();
  std::copy_n(d.gateTypes, SEQPAR_ATTN_MAX_GATES, shard.gateTypes.begin());
  const char* const reason = shard.family->whyNoKernel(shard);
  return reason == nullptr ? std::string() : std::string("has no kernel for it on GPUs: ") + reason;
#else
  return "has no kernels for GPUs: this library was built without CUDA";
#endif
}

std::unique_ptr<Passes> makePasses(const Shard& shard, Exec& exec) {
#ifdef SEQPAR_ATTN_CUDA
  if (exec.device() != SEQPAR_HOST_DEVICE) return shard.family->makeDevice(shard, exec);
#endif
  return makeHostPasses(shard, exec);
}

std::unique_ptr<Passes> makeHostPasses(const Shard& shard, Exec& exec) {
  return shard.family->makeHost(shard, exec);
}

}  // namespace seqpar::attn::linear
