// What the kernels are told of a shard, and what they cannot do. Compiles without CUDA.
#include "attn/linear/device/passes.h"

namespace seqpar::attn::linear {
namespace {

Gate gateOf(const Family& family) {
  switch (family.gate) {
    case GateShape::None:
      return Gate::None;
    case GateShape::OfHead:
      return Gate::Head;
    case GateShape::OfToken:
      return Gate::Token;
    case GateShape::OfChannel:
      return Gate::Channel;
  }
  return Gate::None;
}

}  // namespace

LinearProblem kernelProblem(const Shard& shard) {
  LinearProblem problem;
  problem.batch = static_cast<int64_t>(shard.batch);
  problem.tokens = static_cast<int64_t>(shard.tokens);
  problem.heads = static_cast<int>(shard.heads);
  problem.qkHeads = static_cast<int>(shard.keyHeads);
  problem.dk = static_cast<int>(shard.dk);
  problem.dv = static_cast<int>(shard.dv);
  problem.type = shard.type;
  problem.scale = shard.scale;
  problem.gate = gateOf(*shard.family);
  problem.gateType = problem.gate == Gate::None ? seqparFloat32 : shard.gateType;
  return problem;
}

const char* whyNoKernel(const Shard& shard) {
  auto problem = kernelProblem(shard);
  alignas(16) static const char kSomewhere[16] = {};  // pointers come with the calls
  for (auto* tensor : {&problem.q, &problem.k, &problem.v, &problem.gates}) tensor->data = kSomewhere;
  return whyNot(problem);
}

}  // namespace seqpar::attn::linear
