// The launches of instances_sm90.h, for a translation unit that instantiates them.
#pragma once

#include "kernels/attn/linear/forward_sm90/instances_sm90.h"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::forward_sm90 {

template <class T, Pass P>
int runStates(const StatesKernel& kernel, bool paired, const KernelLaunch& on) {
  const LinearProblem& problem = kernel.pass.problem;
  const bool wide = keyBlocks(problem.dk) > 1;
  return dispatch(problem, [&](auto kind) {
    const auto run = [&](auto function) {
      return launchKernel(function, gridOf(kernel.items, on.ctas), kThreads, StatesShared<kind()>::kBytes, on.stream,
                          on.overlaps, kernel);
    };
    if constexpr (kind() == GateKind::Uniform && kHasFactors<T>) {
      const auto runUniform = [&]<bool kGated>() {
        if (!paired) {
          return wide ? run(segmentStatesSm90<T, kind(), P, kGated, true>)
                      : run(segmentStatesSm90<T, kind(), P, kGated>);
        }
        return wide ? run(segmentStatesSm90<T, kind(), P, kGated, true, true>)
                    : run(segmentStatesSm90<T, kind(), P, kGated, false, true>);
      };
      const bool gated = P == Pass::Forward && problem.inputGates.data != nullptr;
      return gated ? runUniform.template operator()<P == Pass::Forward>() : runUniform.template operator()<false>();
    }
    if constexpr (kind() != GateKind::Uniform) {
      if (paired) return run(segmentStatesSm90<T, kind(), P, false, false, true>);
    }
    if (wide) return run(segmentStatesSm90<T, kind(), P, false, true>);
    return run(segmentStatesSm90<T, kind(), P>);
  });
}

template <class T>
int runOutputs(const OutputsKernel& kernel, const KernelLaunch& on) {
  const LinearProblem& problem = kernel.pass.problem;
  const bool wide = keyBlocks(problem.dk) > 1;
  const auto run = [&]<Heads H>(auto function) {
    return launchKernel(function, gridOf(kernel.items, on.ctas), kThreads, OutputsLayout<T, H>::kBytes, on.stream,
                        on.overlaps, kernel);
  };
  return dispatch(problem, [&](auto kind) {
    const auto runHeads = [&]<Heads H>() {
      return wide ? run.template operator()<H>(outputsSm90<T, kind(), H, true>)
                  : run.template operator()<H>(outputsSm90<T, kind(), H>);
    };
    if constexpr (kind() == GateKind::Uniform && kHasFactors<T>) {
      if (pairs(kernel.pass)) return runHeads.template operator()<Heads::Pair>();
      if (problem.inputGates.data != nullptr) return runHeads.template operator()<Heads::Gated>();
    }
    if constexpr (kind() != GateKind::Uniform) {
      if (joinsShortHeads(problem))
        return run.template operator()<Heads::Joined>(outputsSm90<T, kind(), Heads::Joined>);
    }
    return runHeads.template operator()<Heads::Plain>();
  });
}

}  // namespace seqpar::attn::forward_sm90
