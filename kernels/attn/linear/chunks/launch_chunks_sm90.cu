// The launches of a forward by states of chunks: a chain of states, then the outputs of all chunks in parallel.
#include <algorithm>

#include "kernels/attn/linear/chunks/chunk_outputs_sm90.h"
#include "kernels/attn/linear/forward_sm90.h"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/pairs.h"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn::forward_sm90 {
namespace {

using backward::kPair;
using backward::Task;
using backward::sm90::ChunkStatesTask;

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) chunksSm90(const __grid_constant__ ChunkStatesTask task) {
  Kernel::run(task);
}

/// `dependent`: as in launchKernel().
template <class Kernel>
cudaError_t run(const ChunkStatesTask& task, int64_t items, int ctas, void* stream, bool dependent) {
  return launchKernel(chunksSm90<Kernel>, gridOf(items, ctas), Kernel::kThreads, sizeof(typename Kernel::Memory),
                      stream, dependent, task);
}

/// All heads in one segment.
Task taskFor(const LinearProblem& problem, const Input& out) {
  const int64_t tokens = (problem.tokens + kChunkTokens - 1) / kChunkTokens * kChunkTokens;
  Task task = backward::taskOf(problem, {1, tokens}, {0, problem.heads}, out);
  task.together = pairsHeads(problem) ? kPair : 1;
  return task;
}

}  // namespace

bool formsChunks(const LinearProblem& problem) {
  // With keys of one block, and with fewer chains, segments of heads in parallel are faster.
  constexpr int64_t kLeastChains = 48;
  if (problem.type != seqparBfloat16 || !fits(problem) || problem.gate == Gate::Channel ||
      problem.dv % warpgroup::kPanel != 0)
    return false;
  if (backward::taskOf(problem, {}, {0, problem.heads}, {}).keyBlocks != kKeyBlocks) return false;
  if (problem.dv == warpgroup::kPanel && !pairsHeads(problem)) return false;
  return !formsHeadChains(problem) && itemsOf(taskFor(problem, {})) >= kLeastChains;
}

size_t chunkStatesSize(const LinearProblem& problem) {
  if (!formsChunks(problem)) return 0;
  const Task task = taskFor(problem, {});
  return static_cast<size_t>(chunkStatesOf(task, kOutputTiles).bytes(task));
}

bool forwardByChunks(const Outputs& pass, const Launch& launch, int& error) {
  const LinearProblem& problem = pass.problem;
  const bool whole = pass.segments.spans == nullptr && pass.heads.first == 0 && pass.heads.count == problem.heads;
  if (!whole || pass.storesMaps || pass.workspace == nullptr || !formsChunks(problem)) return false;
  Task task = taskFor(problem, {pass.out.data, pass.out.batch, pass.out.token, pass.out.head});
  task.initial = pass.initial;
  ChunkStatesTask states;
  if (!backward::sm90::encodeMaps<Bf16>(states, task)) return false;
  states.to = chunkStatesOf(task, kOutputTiles);
  states.to.directions = 1;
  states.to.states = pass.workspace;
  states.to.finalState = pass.finalState;
  const bool early = launch.sequence != nullptr && startsEarly(waitingRecord(pass), launch);
  const int sms = forward_sm90::ctasAtOnce(problem), ctas = launch.ctas > 0 ? std::min(launch.ctas, sms) : sms;
  const auto runBoth = [&]<int kHeads, bool kGated>() {
    using States = backward::sm90::ChunkStatesKernel<Bf16, kHeads, kGated>;
    const cudaError_t failed = run<States>(states, itemsOf(task), ctas, launch.stream, early);
    if (failed != cudaSuccess) return failed;
    using Outputs = ChunkOutputsKernel<Bf16, kGated>;
    return run<Outputs>(states, unitsOf(task), ctas, launch.stream, true);
  };
  const auto runHeads = [&]<int kHeads>() {
    return problem.inputGates.data != nullptr ? runBoth.template operator()<kHeads, true>()
                                              : runBoth.template operator()<kHeads, false>();
  };
  error = task.together == kPair ? runHeads.template operator()<kPair>() : runHeads.template operator()<1>();
  if (launch.sequence != nullptr) launch.sequence->end();  // the launches are not recorded
  return true;
}

}  // namespace seqpar::attn::forward_sm90
