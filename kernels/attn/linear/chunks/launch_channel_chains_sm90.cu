// The launches of a forward by heads with channel decays: operands of all chunks, chains, and their tails.
#include "kernels/attn/linear/chunks/channel_chain_sm90.h"
#include "kernels/attn/linear/chunks/channel_chain_tail_sm90.h"
#include "kernels/attn/linear/chunks/channel_chains_sm90.h"
#include "kernels/attn/linear/chunks/channel_operands_sm90.h"
#include "kernels/attn/linear/forward_sm90.h"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn::forward_sm90 {
namespace {

constexpr int kBlocks = 2;  ///< of 128 channels of keys
using Record = ChannelRecord<Bf16, kBlocks>;

template <class Kernel, int kCtas>
__global__ void __launch_bounds__(Kernel::kThreads, kCtas)
    channelChainsSm90(const __grid_constant__ ChannelChainTask task) {
  Kernel::run(task);
}

int64_t chunksOf(const LinearProblem& problem) {
  return (problem.tokens + kChunk - 1) / kChunk;
}
int64_t headsOf(const LinearProblem& problem) {
  return problem.batch * problem.heads;
}
int64_t itemsOf(const LinearProblem& problem) {
  return headsOf(problem) * ((problem.dv + kPanel - 1) / kPanel);
}
/// ChannelChainTask::partChunks: parts fill `ctas`, if they have at least kLeastChunks.
int partChunksOf(const LinearProblem& problem, int64_t ctas) {
  constexpr int64_t kLeastChunks = 8;
  const int64_t chunks = chunksOf(problem);
  const int64_t parts = std::max<int64_t>(std::min(ctas / itemsOf(problem), chunks / kLeastChunks), 1);
  return static_cast<int>(std::max<int64_t>((chunks + parts - 1) / parts, 1));
}
int partsOf(const LinearProblem& problem, int partChunks) {
  return static_cast<int>(std::max<int64_t>((chunksOf(problem) + partChunks - 1) / partChunks, 1));
}

/// Offsets in the workspace.
struct Workspace {
  size_t prefixes, partDecays, partStates, size;

  Workspace(const LinearProblem& problem, int parts) {
    constexpr size_t kDecays = Record::kChannels * sizeof(float);
    const auto heads = static_cast<size_t>(headsOf(problem)), chunks = static_cast<size_t>(chunksOf(problem));
    const auto count = static_cast<size_t>(parts > 1 ? parts : 0);
    prefixes = heads * chunks * sizeof(Record);
    partDecays = prefixes + (count > 0 ? heads * chunks * kDecays : 0);
    partStates = partDecays + heads * count * kDecays;
    size = partStates + static_cast<size_t>(itemsOf(problem)) * count * kDecays * kPanel;
  }
};

template <class Kernel, int kCtas>
cudaError_t runKernel(const ChannelChainTask& task, int64_t items, int ctas, void* stream, bool dependent) {
  return launchKernel(channelChainsSm90<Kernel, kCtas>, gridOf(items, ctas), Kernel::kThreads,
                      sizeof(typename Kernel::Memory), stream, dependent, task);
}
cudaError_t run(const ChannelChainTask& task, int ctas, void* stream) {
  using Operands = ChannelOperandsKernel<Bf16, kBlocks>;
  using Chain = ChannelChainKernel<Bf16, kBlocks>;
  using Tail = ChannelChainTailKernel<Bf16, kBlocks>;
  cudaError_t error = runKernel<Operands, 2>(task, Operands::itemsOf(task), 0, stream, false);
  if (error == cudaSuccess) error = runKernel<Chain, 1>(task, chainsOf<1>(task) * task.parts, ctas, stream, true);
  if (error != cudaSuccess || task.parts == 1) return error;
  return runKernel<Tail, 2>(task, Tail::itemsOf(task), 0, stream, true);
}

}  // namespace

bool formsChannelChains(const LinearProblem& problem) {
  constexpr size_t kMostBytes = size_t{2} << 30;
  constexpr int64_t kLeastBusy = 60;  // percent of the SMs
  if (problem.type != seqparBfloat16 || !fits(problem) || problem.gate != Gate::Channel) return false;
  if (problem.inputGates.data != nullptr || problem.dv % kPanel != 0) return false;
  if (problem.dk <= backward::kBlock || problem.dk > Record::kChannels || problem.tokens == 0) return false;
  const int64_t sms = forward_sm90::ctasAtOnce(problem);
  const int parts = partsOf(problem, partChunksOf(problem, sms));
  const int64_t items = itemsOf(problem) * parts;
  return items * 100 >= (items + sms - 1) / sms * sms * kLeastBusy && Workspace(problem, parts).size <= kMostBytes;
}

size_t channelChainsSize(const LinearProblem& problem) {
  if (!formsChannelChains(problem)) return 0;
  return Workspace(problem, partsOf(problem, partChunksOf(problem, forward_sm90::ctasAtOnce(problem)))).size;
}

bool launchChannelChains(const Outputs& pass, float* saved, const Launch& launch, int& error) {
  const LinearProblem& problem = pass.problem;
  const bool whole = pass.segments.spans == nullptr && pass.heads.first == 0 && pass.heads.count == problem.heads;
  if (!whole || pass.storesMaps || pass.workspace == nullptr || !formsChannelChains(problem)) return false;
  backward::Task task =
      backward::taskOf(problem, {}, {0, problem.heads}, {pass.out.data, pass.out.batch, pass.out.token, pass.out.head});
  task.initial = pass.initial;
  ChannelChainTask chains;
  if (!backward::sm90::encodeMaps<Bf16>(chains, task)) return false;
  chains.to.finalState = pass.finalState;
  chains.saved = saved;
  const int sms = forward_sm90::ctasAtOnce(problem), ctas = launch.ctas > 0 ? std::min(launch.ctas, sms) : sms;
  chains.partChunks = partChunksOf(problem, sms);
  chains.parts = partsOf(problem, chains.partChunks);
  const Workspace offsets(problem, chains.parts);
  const auto at = [&](size_t offset) { return reinterpret_cast<char*>(pass.workspace) + offset; };
  chains.records = at(0);
  chains.prefixes = reinterpret_cast<float*>(at(offsets.prefixes));
  chains.partDecays = reinterpret_cast<float*>(at(offsets.partDecays));
  chains.partStates = reinterpret_cast<float*>(at(offsets.partStates));
  error = run(chains, ctas, launch.stream);
  if (launch.sequence != nullptr) launch.sequence->end();  // the launches are not recorded
  return true;
}

}  // namespace seqpar::attn::forward_sm90
