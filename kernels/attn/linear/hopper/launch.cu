#include "kernels/attn/linear/hopper.h"

#include "kernels/attn/linear/hopper/outputs.cuh"
#include "kernels/attn/linear/hopper/segment_states.cuh"
#include "kernels/attn/linear/hopper/tensor_map.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::hopper {
namespace {

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : 0;
}

int tilesOf(const LinearProblem& problem) {
  return (problem.dv + kMostColumns - 1) / kMostColumns;
}

bool encode16(CUtensorMap& map, const Input& tensor, int columns, int heads, const LinearProblem& problem) {
  return encodeMap(map, {tensor, problem.type, columns, heads, kSwizzleColumns, kChunk, true}, problem);
}

/// Of gates of channels; others are not read by the copy engine.
bool encodeGates(CUtensorMap& map, const LinearProblem& problem) {
  return problem.gate != Gate::Channel ||
         encodeMap(map, {problem.gates, problem.gateType, problem.dk, problem.heads, kMostColumns, kChunk, false},
                   problem);
}

bool encodeAll(OutputsKernel& kernel, const Outputs& pass) {
  const LinearProblem& problem = pass.problem;
  const Input out = {pass.out.data, pass.out.batch, pass.out.token, pass.out.head};
  return encode16(kernel.queries, problem.q, problem.dk, problem.qkHeads, problem) &&
         encode16(kernel.keys, problem.k, problem.dk, problem.qkHeads, problem) &&
         encode16(kernel.values, problem.v, problem.dv, problem.heads, problem) && encodeGates(kernel.gates, problem) &&
         encode16(kernel.out, out, problem.dv, problem.heads, problem);
}

/// act(the kind of gates as a constant).
template <class Act>
int dispatch(const LinearProblem& problem, const Act& act) {
  if (problem.gate != Gate::Channel) return act(std::integral_constant<GateKind, GateKind::Uniform>());
  if (problem.gateType == seqparFloat32) return act(std::integral_constant<GateKind, GateKind::Full>());
  return act(std::integral_constant<GateKind, GateKind::Half>());
}

template <Pass P>
bool launchStates(const SegmentStates& pass, int segments, const Input& keys, const Input& values, bool early,
                  const Launch& launch, int& error) {
  const LinearProblem& problem = pass.problem;
  StatesKernel kernel = {pass, segments, itemCount(problem, pass.heads, segments, tilesOf(problem)), {}, {}, {}};
  error = cudaSuccess;
  if (kernel.items == 0) return true;
  if (!encode16(kernel.keys, keys, problem.dk, problem.qkHeads, problem) ||
      !encode16(kernel.values, values, problem.dv, problem.heads, problem)) {
    return false;
  }
  if (!encodeGates(kernel.gates, problem)) return false;
  error = dispatch(problem, [&](auto kind) {
    return launchKernel(statesKernel<Bfloat16, kind(), P>, gridOf(kernel.items, launch.ctas), kThreads,
                        StatesShared<kind()>::kBytes, launch.stream, early, kernel);
  });
  return true;
}

}  // namespace

bool fits(const LinearProblem& problem) {
  constexpr int64_t kMostTokens = INT64_C(1) << 30;
  return problem.type == seqparBfloat16 && problem.dk > kSwizzleColumns && problem.dk <= kMostColumns &&
         problem.tokens > 0 && problem.tokens < kMostTokens && problem.batch > 0 && problem.batch < kMostTokens &&
         attribute(cudaDevAttrComputeCapabilityMajor) == 9 && attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

int ctasAtOnce(const LinearProblem&) {
  return attribute(cudaDevAttrMultiProcessorCount);
}

bool segmentStates(const SegmentStates& pass, int segments, bool early, const Launch& launch, int& error) {
  return launchStates<Pass::Forward>(pass, segments, pass.problem.k, pass.problem.v, early, launch, error);
}

bool segmentStateGradients(const SegmentStateGradients& pass, int segments, bool early, const Launch& launch,
                           int& error) {
  const SegmentStates states = {pass.problem, pass.segments, pass.heads, pass.maps};
  return launchStates<Pass::Backward>(states, segments, pass.problem.q, pass.dOut, early, launch, error);
}

bool packs(const Outputs& pass) {
  const LinearProblem& problem = pass.problem;
  OutputsKernel kernel = {};
  return fits(problem) && problem.gate != Gate::Channel && problem.dk == kMostColumns &&
         problem.dv % kMostColumns == 0 && encodeAll(kernel, pass);
}

bool outputs(const Outputs& pass, const Launch& launch, int& error) {
  const LinearProblem& problem = pass.problem;
  OutputsKernel kernel = {pass, itemCount(problem, pass.heads, pass.segments.count, tilesOf(problem)), {}, {}, {}, {},
                          {}};
  error = cudaSuccess;
  if (kernel.items == 0) return true;
  if (!encodeAll(kernel, pass)) return false;
  // Without pass 1 before it, the kernel before may be the one that makes the inputs.
  const bool early = pass.segments.count > 1 || pass.leads;
  error = dispatch(problem, [&](auto kind) {
    return launchKernel(outputsKernel<Bfloat16, kind()>, gridOf(kernel.items, launch.ctas), kThreads,
                        OutputsShared::kBytes, launch.stream, early, kernel);
  });
  return true;
}

}  // namespace seqpar::attn::hopper
