#include "attn/linear/device/parts.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/attn/linear/packing.h"
#include "kernels/attn/linear/pairs.h"

namespace seqpar::attn::linear {
namespace {

Gate gateOf(const Family& family) {
  if (family.gateCount == 0) return Gate::None;
  switch (family.gateRows[0].shape) {
    case seqparAttnGatePerHead:
      return Gate::Head;
    case seqparAttnGatePerToken:
      return Gate::Token;
    case seqparAttnGatePerChannel:
      return Gate::Channel;
  }
  return Gate::None;
}

constexpr int64_t kUnit = 16;  // bytes

template <class Kernels>
Kernels strided(const Tensor& tensor, size_t first) {
  const int64_t unit = kUnit / static_cast<int64_t>(bytesOf(tensor.type));
  const auto stride = [&](int64_t given, int64_t count) {
    return count > 1 ? given : (given + unit - 1) / unit * unit;  // has no effect, and tensor maps check it
  };
  return {tensor.at(0, static_cast<int64_t>(first), 0), stride(tensor.batchStride, tensor.batch),
          stride(tensor.tokenStride, tensor.tokens), stride(tensor.headStride, tensor.heads)};
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
  problem.gateType = problem.gate == Gate::None ? seqparFloat32 : static_cast<seqparDataType_t>(shard.gateTypes[0]);
  return problem;
}

LinearProblem withoutTensors(LinearProblem problem) {
  alignas(16) static const char kSomewhere[16] = {};
  for (auto* tensor : {&problem.q, &problem.k, &problem.v, &problem.gates}) tensor->data = kSomewhere;
  return problem;
}

const char* whyNoKernel(const Shard& shard) {
  return whyNot(withoutTensors(kernelProblem(shard)));
}

Part wholeOf(const Shard& shard, int ctas, std::vector<Span>& spans) {
  Part part;
  part.shape = kernelProblem(shard);
  part.segments = cutIntoSegments(withoutTensors(part.shape), ctas);
  part.piece.tokens = shard.tokens;
  if (shard.sequences == 0 || shard.pieces.empty()) return part;
  std::vector<Sequence> sequences;
  for (const auto& piece : shard.pieces) {
    const auto begin = static_cast<int64_t>(piece.first);
    sequences.push_back({begin, begin + static_cast<int64_t>(piece.tokens), !piece.begins, piece.reachesEnd});
  }
  auto packed = cutPacked(sequences, part.segments.tokens);
  part.segments = packed.segments;
  spans = std::move(packed.spans);
  return part;
}

std::vector<Part> partsOf(const Shard& shard, int ctas) {
  std::vector<Part> parts;
  if (shard.sequences == 0) return parts;
  for (const auto& piece : shard.pieces) {
    Part part;
    part.shape = kernelProblem(shard);
    part.shape.tokens = static_cast<int64_t>(piece.tokens);
    part.segments = cutIntoSegments(withoutTensors(part.shape), ctas);
    part.piece = piece;
    parts.push_back(part);
  }
  return parts;
}

Input inputOf(const Tensor& tensor, size_t first) {
  return strided<Input>(tensor, first);
}
Output outputOf(const Tensor& tensor, size_t first) {
  return strided<Output>(tensor, first);
}

const AlignmentCheck& AlignmentCheck::require(const char* name, const Tensor& tensor, Input LinearProblem::*as) const {
  LinearProblem problem = shape_;
  problem.*as = inputOf(tensor);
  if (tensor.elements() == 0 || tensor.data == nullptr || whyNot(problem) == nullptr) return *this;
  fail(seqparInvalidArgument, call_, ": args->", name, " is at ", tensor.data, " with strides of ", tensor.batchStride,
       ", ", tensor.tokenStride, " and ", tensor.headStride, " elements of ", bytesOf(tensor.type),
       " bytes (batch, token, head), expected multiples of ", kUnit, " bytes on a GPU");
}

const AlignmentCheck& AlignmentCheck::rows(const char* name, const Tensor& tensor) const {
  return require(name, tensor, &LinearProblem::v);
}

const AlignmentCheck& AlignmentCheck::gates(const char* name, const Tensor& tensor) const {
  return shape_.gate == Gate::None ? *this : require(name, tensor, &LinearProblem::gates);
}

const AlignmentCheck& AlignmentCheck::inputs(const Inputs& in, bool readsValues) const {
  rows("q", in.q).rows("k", in.k);
  if (readsValues) rows("v", in.v);
  return gates("gates[0]", in.gates[0]);
}

const AlignmentCheck& AlignmentCheck::gradients(const Gradients& to) const {
  rows("dOut", to.dOut).rows("dq", to.dq).rows("dk", to.dk).rows("dv", to.dv);
  return gates("dGates[0]", to.dGates[0]);
}

PartSizes largestOf(const Part& whole, const std::vector<Part>& parts, bool joins) {
  PartSizes most;
  const auto take = [&](const Part& part) {
    most.maps = std::max(most.maps, stateMapsSize(part.shape, part.segments));
    most.gradients = std::max(most.gradients, gradientsWorkspaceSize(part.shape, part.segments, joins));
  };
  take(whole);
  for (const auto& part : parts) take(part);
  return most;
}

}  // namespace seqpar::attn::linear
