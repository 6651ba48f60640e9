// The launches of the kernels for groups of heads.
#include <algorithm>

#include "kernels/attn/linear/backward/chunk_states_sm90.h"
#include "kernels/attn/linear/backward/group_sm90.h"
#include "kernels/attn/linear/backward/instances.cuh"
#include "kernels/attn/linear/launch.cuh"

namespace seqpar::attn::backward {
namespace {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) chunkStates(const __grid_constant__ sm90::ChunkStatesTask task) {
  Kernel::run(task);
}
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) groupGradients(const __grid_constant__ sm90::GroupTask task) {
  Kernel::run(task);
}

/// Whether the states are faster with items of one head, or half of its columns: as many rounds of CTAs, of shorter
/// chains.
bool areSingle(const Task& task, int directions, int ctas) {
  const int64_t items = directions * itemsOf(task);
  return (2 * items + ctas - 1) / ctas == (items + ctas - 1) / ctas;
}

/// Sets the directions of a part's chain. Returns whether there is one: with one direction in `to`, the forward has
/// kept the states.
bool setDirections(ChunkStates& to, GradientsPart part) {
  const bool gradientsFirst = to.firstDirection != 0, kept = to.directions == 1;
  if (kept || part != GradientsPart::Whole) to.directions = 1;
  if (kept) {
    to.firstDirection = 1;
    return part != (gradientsFirst ? GradientsPart::AfterStates : GradientsPart::States);
  }
  if (part == GradientsPart::AfterStates) to.firstDirection = gradientsFirst ? 0 : 1;
  return true;
}

template <class Shape>
cudaError_t launchShape(const Task& task, const ChunkStates& chunks, GradientsPart part, const Launch& launch) {
  sm90::ChunkStatesTask chain;
  sm90::GroupTask group;
  if (!sm90::encodeMaps<Bf16>(chain, task) || !sm90::encodeGroup<Bf16>(group, task, chunks))
    return cudaErrorNotSupported;
  chain.to = chunks;
  const bool hasChain = setDirections(chain.to, part);
  // The scan's kernel waits for all earlier ones, and this one for the scan's, before all accesses.
  const bool afterScan = part == GradientsPart::AfterStates;
  const bool single = areSingle(task, chain.to.directions, launch.ctas);
  if (single) chain.together = 1;
  const auto gridOfItems = [&](int64_t items) {
    return dim3(static_cast<unsigned>(std::clamp<int64_t>(items, 1, launch.ctas)));
  };
  const auto runChain = [&]<int kHeads, bool kGated, bool kSingle = false>() {
    using Kernel = sm90::ChunkStatesKernel<Bf16, kHeads, kGated, typename Shape::OfBlock, kSingle>;
    // With more items, the other form was as fast or faster.
    const int64_t items = Kernel::itemsIn(chain), ctas = launch.ctas;
    chain.copierFences = kSingle ? items <= ctas : items * 4 <= ctas * 3;
    return launchKernel(chunkStates<Kernel>, gridOfItems(Kernel::itemsIn(chain)), Kernel::kThreads,
                        sizeof(typename Kernel::Memory), launch.stream, afterScan, chain);
  };
  const auto runStates = [&]<bool kGated>() {
    if (single) return runChain.template operator()<1, kGated, true>();
    if constexpr (Shape::kKeyBlocks > 1) {
      if (task.together == 1) return runChain.template operator()<1, kGated>();
    }
    return runChain.template operator()<kPair, kGated>();
  };
  cudaError_t error = cudaSuccess;
  if (hasChain && task.inputGates.data != nullptr) error = runStates.template operator()<true>();
  if (hasChain && task.inputGates.data == nullptr) error = runStates.template operator()<false>();
  if (error != cudaSuccess || part == GradientsPart::States) return error;
  using Kernel = sm90::GroupKernel<Bf16, Shape>;
  return launchKernel(groupGradients<Kernel>, gridOfItems(sm90::groupItemsOf(group)), Kernel::kThreads,
                      sizeof(typename Kernel::Memory), launch.stream, hasChain || afterScan, group);
}

}  // namespace

cudaError_t launchGroups(const Task& task, const ChunkStates& chunks, GradientsPart part, const Launch& launch) {
  return withImageShape(task, [&]<class Shape>() { return launchShape<Shape>(task, chunks, part, launch); });
}

}  // namespace seqpar::attn::backward
