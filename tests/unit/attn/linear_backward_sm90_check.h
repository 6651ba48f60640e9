// The backward kernels of linear attention for compute capability 9.0, as the checks of linear_backward_check.h run
// them.
#pragma once

#include "kernels/attn/linear/backward/gradients_sm90.h"
#include "linear_backward_check.h"

namespace seqpar::attn::backward::test {

using seqpar::test::LinearGradients;
using seqpar::test::Seed;

template <class T, bool kChannel, bool kPair = false>
struct KernelsSm90 {
  static constexpr bool kExact = false;
  static constexpr int kTogether = kPair ? backward::kPair : 1;
  static constexpr int kWithOneTerm = kPair && !kChannel ? kTogether : 1;
  static constexpr bool kScales = ptx::kIsBf16<T> && !(kChannel && kPair);
  static constexpr bool kSumsValues = !kChannel;
  using Number = T;

  static void maps(const Task& task, uint64_t seed) {
    if constexpr (kChannel && kPair) {
      Kernels<T, 64, true>::maps(task, seed);
    } else {
      emulator::run(2, sm90::MapsPlace::kThreads, sizeof(sm90::MapsMemory<T, kChannel>), seed,
                    [&] { sm90::segmentMaps<T, kChannel>(task); });
    }
  }
  template <class Kernel>
  static void run(const Task& task, uint64_t seed) {
    typename Kernel::Arguments arguments;
    if constexpr (kChannel) {
      arguments = task;
    } else {
      REQUIRE(sm90::encodeMaps<T>(arguments, task));
    }
    emulator::run(2, sm90::kGradientThreads, sizeof(typename Kernel::Memory), seed, [&] { Kernel::run(arguments); });
  }
  static void gradients(Task task, uint64_t seed) {
    std::vector<uint32_t> strong(static_cast<size_t>(itemsOf(task)), 7);
    task.strong = strong.data();
    if constexpr (kChannel) {
      const auto runChannels = [&]<bool kTerms>() {
        run<sm90::GradientsKernel<T, true, false, kPair, false, false, kTerms>>(task, seed);
        run<sm90::GradientsKernel<T, true, false, kPair, true, false, kTerms>>(task, seed);
      };
      if (kScales && (task.dq.scales != nullptr || task.dvOut.scales != nullptr)) {
        runChannels.template operator()<kScales>();
      } else {
        runChannels.template operator()<false>();
      }
    } else if (itemsTogether(task) > 1) {
      runTokens<true>(task, seed);
    } else {
      runTokens<false>(task, seed);
    }
  }
  template <bool kWide>
  static void runTokens(const Task& task, uint64_t seed) {
    if (task.inputGates.data != nullptr) {
      run<sm90::GradientsKernel<T, false, true, kPair, false, kWide>>(task, seed);
    } else {
      run<sm90::GradientsKernel<T, false, false, kPair, false, kWide>>(task, seed);
    }
  }
};

}  // namespace seqpar::attn::backward::test
