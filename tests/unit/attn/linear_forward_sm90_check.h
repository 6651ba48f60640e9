// Runs the forward kernels for compute capability 9.0, and pass 1 of their backward pass, on an emulated CTA.
#pragma once

#include "kernels/attn/linear/forward_sm90/kernel_arguments_sm90.cuh"
#include "linear_backward_check.h"
#include "linear_forward_check.h"
#include "unit/seed.h"

namespace seqpar::attn::test {

using forward_sm90::Pass;

template <class T, Pass P>
void runStates(const SegmentStates& pass, const Input& keys, const Input& values, int ctas, uint64_t seed,
               const int* needed = nullptr) {
  forward_sm90::StatesKernel kernel;
  const bool joined = joinsShortHeads(pass.problem), paired = joined || forward_sm90::pairs(pass);
  REQUIRE(setArguments(kernel, pass, pass.segments.count, keys, values, paired));
  kernel.needed = needed;
  forward_sm90::dispatch(pass.problem, [&](auto kind) {
    const bool wide = forward_sm90::keyBlocks(pass.problem.dk) > 1;
    const auto run = [&]<bool kGated, bool kWide, bool kPair = false>() {
      emulator::run(ctas, forward_sm90::kThreads, forward_sm90::StatesShared<kind()>::kBytes, seed, [&] {
        forward_sm90::StatesCta<T, kind(), P, kGated, kWide, kPair>(kernel, ptx::sharedMemory()).run();
      });
      return 0;
    };
    if constexpr (kind() == forward_sm90::GateKind::Uniform && forward_sm90::kHasFactors<T>) {
      const auto runUniform = [&]<bool kGated>() {
        if (paired) {
          return wide ? run.template operator()<kGated, true, true>() : run.template operator()<kGated, false, true>();
        }
        return wide ? run.template operator()<kGated, true>() : run.template operator()<kGated, false>();
      };
      const bool gated = P == Pass::Forward && pass.problem.inputGates.data != nullptr;
      return gated ? runUniform.template operator()<P == Pass::Forward>() : runUniform.template operator()<false>();
    }
    if constexpr (kind() != forward_sm90::GateKind::Uniform) {
      if (joined) return run.template operator()<false, false, true>();
    }
    if (wide) return run.template operator()<false, true>();
    return run.template operator()<false, false>();
  });
}

/// Pass 1 of the backward, with one segment. `most`: the relative error of the norm.
template <class T>
void checkStateGradients(const backward::test::BackwardShape& shape, double most) {
  const seqpar::test::Seed seed;
  INFO(shape.name() << ", seed " << seed);
  const seqpar::test::BackwardCase c(shape, seed);
  REQUIRE(c.segments.count == 1);
  SegmentStates pass;
  pass.problem = c.problem(c.q.data(), c.k.data(), c.v.data(), c.gates.data());
  pass.segments = c.segments;
  pass.heads = {0, shape.heads};
  std::vector<float> states(c.stateGradient.size(), NAN), logs(c.logDecay.size(), NAN);
  pass.maps = {states.data(), logs.data()};
  runStates<T, Pass::Backward>(pass, pass.problem.q, c.dOutput(c.dOut.data()), 2, seed);
  CHECK(seqpar::test::relativeError(backward::test::wide(states), backward::test::wide(c.stateGradient)) <= most);
  for (size_t i = 0; i < logs.size(); ++i) CHECK(std::exp(logs[i]) == Approx(std::exp(c.logDecay[i])).margin(1e-4));
}

/// T: Bfloat16 or Float16.
template <class T>
struct Sm90Of {
  static void states(const SegmentStates& pass, int ctas, uint64_t seed) {
    runStates<T, Pass::Forward>(pass, pass.problem.k, pass.problem.v, ctas, seed);
  }
  static void outputs(const Outputs& pass, int ctas, uint64_t seed) {
    if (forward_sm90::keyBlocks(pass.problem.dk) > 1) {
      std::vector<float> workspace(static_cast<size_t>(ctas * forward_sm90::SweepMemory::kFloats), NAN);
      Outputs wide = pass;
      wide.workspace = workspace.data();
      run<true>(wide, ctas, seed);
    } else {
      run<false>(pass, ctas, seed);
    }
  }

 private:
  template <bool kWide>
  static void run(const Outputs& pass, int ctas, uint64_t seed) {
    forward_sm90::OutputsKernel kernel;
    REQUIRE(setArguments(kernel, pass));
    using forward_sm90::Heads;
    const auto runCta = [&]<class Cta>() {
      emulator::run(ctas, forward_sm90::kThreads, Cta::Layout::kBytes, seed,
                    [&] { Cta(kernel, ptx::sharedMemory()).run(); });
      return 0;
    };
    forward_sm90::dispatch(pass.problem, [&](auto kind) {
      using forward_sm90::OutputsCta;
      if constexpr (kind() == forward_sm90::GateKind::Uniform && forward_sm90::kHasFactors<T>) {
        if (forward_sm90::pairs(pass)) {
          return runCta.template operator()<OutputsCta<T, kind(), Heads::Pair, kWide>>();
        }
        if (pass.problem.inputGates.data != nullptr) {
          return runCta.template operator()<OutputsCta<T, kind(), Heads::Gated, kWide>>();
        }
      }
      if constexpr (kind() != forward_sm90::GateKind::Uniform && !kWide) {
        if (joinsShortHeads(pass.problem)) {
          return runCta.template operator()<OutputsCta<T, kind(), Heads::Joined>>();
        }
      }
      return runCta.template operator()<OutputsCta<T, kind(), Heads::Plain, kWide>>();
    });
  }
};

}  // namespace seqpar::attn::test
