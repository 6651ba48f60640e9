#include "kernels/attn/linear/forward_sm90.h"

#include "kernels/attn/linear/forward_sm90/kernel_arguments_sm90.cuh"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn::forward_sm90 {
namespace {

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : 0;
}

template <Pass P>
bool launchStates(const SegmentStates& pass, int segments, const Input& keys, const Input& values, const Launch& launch,
                  int& error) {
  const LinearProblem& problem = pass.problem;
  StatesKernel kernel;
  error = cudaSuccess;
  if (!setArguments(kernel, pass, segments, keys, values)) return false;
  if (kernel.items == 0) return true;
  const bool overlaps = startsEarly(recordOf(pass), launch);
  error = dispatch(problem, [&](auto kind) {
    const auto run = [&](auto function) {
      return launchKernel(function, gridOf(kernel.items, launch.ctas), kThreads, StatesShared<kind()>::kBytes,
                          launch.stream, overlaps, kernel);
    };
    if constexpr (P == Pass::Forward && kind() == GateKind::Uniform) {
      if (problem.inputGates.data != nullptr) return run(segmentStatesSm90<Bfloat16, kind(), P, true>);
    }
    return run(segmentStatesSm90<Bfloat16, kind(), P>);
  });
  return true;
}

}  // namespace

bool fits(const LinearProblem& problem) {
  constexpr int64_t kMostTokens = INT64_C(1) << 30;
  return problem.type == seqparBfloat16 && problem.dk > kSwizzleColumns && problem.dk <= Shape::kChannels &&
         problem.tokens > 0 && problem.tokens < kMostTokens && problem.batch > 0 && problem.batch < kMostTokens &&
         attribute(cudaDevAttrComputeCapabilityMajor) == 9 && attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

int ctasAtOnce(const LinearProblem&) {
  return attribute(cudaDevAttrMultiProcessorCount);
}

bool segmentStates(const SegmentStates& pass, int segments, const Launch& launch, int& error) {
  return launchStates<Pass::Forward>(pass, segments, pass.problem.k, pass.problem.v, launch, error);
}

bool segmentStateGradients(const SegmentStateGradients& pass, int segments, const Launch& launch, int& error) {
  const SegmentStates states = {pass.problem, pass.segments, pass.heads, pass.maps};
  return launchStates<Pass::Backward>(states, segments, pass.problem.q, pass.dOut, launch, error);
}

bool packs(const Outputs& pass) {
  const LinearProblem& problem = pass.problem;
  OutputsKernel kernel;
  return fits(problem) && problem.gate != Gate::Channel && problem.dk == Shape::kChannels &&
         problem.dv % Shape::kColumns == 0 && setArguments(kernel, pass);
}

bool outputs(const Outputs& pass, const Launch& launch, int& error) {
  const LinearProblem& problem = pass.problem;
  OutputsKernel kernel;
  error = cudaSuccess;
  if (!setArguments(kernel, pass)) return false;
  if (kernel.items == 0) return true;
  kernel.pass.mapsVisible = mapsVisible(pass, launch.sequence);
  const bool overlaps = startsEarly(recordOf(kernel.pass), launch);
  if (pairs(pass)) {
    error = launchKernel(outputsSm90<Bfloat16, GateKind::Uniform, true>, gridOf(kernel.items, launch.ctas), kThreads,
                         PairShared::kBytes, launch.stream, overlaps, kernel);
    return true;
  }
  error = dispatch(problem, [&](auto kind) {
    return launchKernel(outputsSm90<Bfloat16, kind()>, gridOf(kernel.items, launch.ctas), kThreads,
                        OutputsShared::kBytes, launch.stream, overlaps, kernel);
  });
  return true;
}

}  // namespace seqpar::attn::forward_sm90
