// The launches of a forward by heads with channel decays: operands of all chunks, maps of pieces of heads, and chains.
#include "kernels/attn/linear/backward/channel_chunks_sm90.h"
#include "kernels/attn/linear/backward/channel_groups.h"
#include "kernels/attn/linear/backward/instances.cuh"
#include "kernels/attn/linear/chunks/channel_chain_pieces_sm90.h"
#include "kernels/attn/linear/chunks/channel_chain_sm90.h"
#include "kernels/attn/linear/chunks/channel_chains_sm90.h"
#include "kernels/attn/linear/chunks/channel_operands_sm90.h"
#include "kernels/attn/linear/forward_sm90.h"
#include "kernels/attn/linear/forward_with_maps.h"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn::forward_sm90 {
namespace {

constexpr int kBlocks = 2;  ///< of 128 channels of keys
using Record = ChannelRecord<Bf16, kBlocks>;
using KeptRecord = backward::sm90::ChunkRecord<Bf16>;  ///< that the backward also reads

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

/// The parts of heads, and their pieces, which are short: chains need few of them if decays forget earlier states.
struct Division {
  int parts, partChunks, pieces, pieceChunks;

  explicit Division(const LinearProblem& problem) {
    constexpr int kChunks = 32, kMost = 8;  // of a piece, pieces of a part
    partChunks = partChunksOf(problem, forward_sm90::ctasAtOnce(problem));
    parts = partsOf(problem, partChunks);
    pieces = std::min((partChunks + kChunks - 1) / kChunks, kMost);
    pieceChunks = (partChunks + pieces - 1) / pieces;
  }
  size_t allPieces() const { return static_cast<size_t>(parts) * pieces; }
};

/// Offsets in the workspace.
struct Workspace {
  size_t pieceDecays, pieceStates, size;

  Workspace(const LinearProblem& problem, const Division& division) {
    constexpr size_t kDecays = Record::kChannels * sizeof(float);
    const auto heads = static_cast<size_t>(headsOf(problem)), chunks = static_cast<size_t>(chunksOf(problem));
    pieceDecays = heads * chunks * sizeof(Record);
    pieceStates = pieceDecays + heads * division.allPieces() * kDecays;
    size = pieceStates + static_cast<size_t>(itemsOf(problem)) * division.allPieces() * kDecays * kPanel;
  }
};

template <class Kernel, int kCtas>
cudaError_t runKernel(const ChannelChainTask& task, int64_t items, int ctas, void* stream, bool dependent) {
  return launchKernel(channelChainsSm90<Kernel, kCtas>, gridOf(items, ctas), Kernel::kThreads,
                      sizeof(typename Kernel::Memory), stream, dependent, task);
}
template <class OfRecord>
cudaError_t runPieces(const ChannelChainTask& task, int ctas, void* stream) {
  using Pieces = ChannelPiecesKernel<Bf16, kBlocks, OfRecord>;
  return task.mapCount() == 0 ? cudaSuccess : runKernel<Pieces, 1>(task, Pieces::itemsOf(task), ctas, stream, true);
}
cudaError_t runMaps(const ChannelChainTask& task, int ctas, void* stream) {
  using Operands = ChannelOperandsKernel<Bf16, kBlocks>;
  const cudaError_t error = runKernel<Operands, 2>(task, Operands::itemsOf(task), 0, stream, false);
  return error != cudaSuccess ? error : runPieces<Record>(task, ctas, stream);
}
template <class OfRecord = Record>
cudaError_t runChains(const ChannelChainTask& task, int ctas, void* stream) {
  using Chain = ChannelChainKernel<Bf16, kBlocks, OfRecord>;
  return runKernel<Chain, 1>(task, chainsOf<1>(task) * task.parts, ctas, stream, true);
}
/// Chains from the backward's operands, which are kept with the states of chunks, unless decays are too strong for
/// these: then task.strong is not 0 afterwards, and the other kernels have work.
cudaError_t runKept(ChannelChainTask& task, const Outputs& pass, void* kept, int ctas, void* stream) {
  using namespace backward;
  static_assert(KeptRecord::kKeyBlocks == kBlocks);
  const Task operands = channelGroupsTask(pass.problem, {pass.out.data, pass.out.batch, pass.out.token, pass.out.head});
  const KeptChunks chunks(kept, pass.problem);
  ChannelGroupsMemory memory{chunks.records, chunkStatesOf(operands, 1), chunks.strong};
  memory.leavesStrong = true;
  cudaError_t error = launchChannelGroups(operands, memory, GradientsPart::States, {stream, ctas});
  task.strong = chunks.strong;
  ChannelChainTask of = task;
  of.records = chunks.records;
  of.to = chunkStatesOf(operands, 1);
  of.to.states = chunks.states;
  of.to.finalState = task.to.finalState;
  if (error == cudaSuccess) error = runPieces<KeptRecord>(of, ctas, stream);
  return error != cudaSuccess ? error : runChains<KeptRecord>(of, ctas, stream);
}

int ctasOf(const LinearProblem& problem, const Launch& launch) {
  const int sms = forward_sm90::ctasAtOnce(problem);
  return launch.ctas > 0 ? std::min(launch.ctas, sms) : sms;
}
/// Returns false if the pass is not possible by chains.
bool encodeChains(ChannelChainTask& chains, const Outputs& pass) {
  const LinearProblem& problem = pass.problem;
  const bool whole = pass.segments.spans == nullptr && pass.heads.first == 0 && pass.heads.count == problem.heads;
  if (!whole || pass.storesMaps || pass.workspace == nullptr || !formsChannelChains(problem)) return false;
  backward::Task task =
      backward::taskOf(problem, {}, {0, problem.heads}, {pass.out.data, pass.out.batch, pass.out.token, pass.out.head});
  task.initial = pass.initial;
  if (!backward::sm90::encodeMaps<Bf16>(chains, task)) return false;
  chains.to.finalState = pass.finalState;
  const Division division(problem);
  chains.parts = division.parts;
  chains.partChunks = division.partChunks;
  chains.pieces = division.pieces;
  chains.pieceChunks = division.pieceChunks;
  const Workspace offsets(problem, division);
  const auto at = [&](size_t offset) { return reinterpret_cast<char*>(pass.workspace) + offset; };
  chains.records = at(0);
  chains.pieceDecays = reinterpret_cast<float*>(at(offsets.pieceDecays));
  chains.pieceStates = reinterpret_cast<float*>(at(offsets.pieceStates));
  return true;
}

}  // namespace

bool formsChannelChains(const LinearProblem& problem) {
  constexpr size_t kMostBytes = size_t{2} << 30;
  constexpr int64_t kLeastBusy = 60;  // percent of the SMs
  if (problem.type != seqparBfloat16 || !fits(problem) || problem.gate != Gate::Channel) return false;
  if (problem.inputGates.data != nullptr || problem.dv % kPanel != 0) return false;
  if (problem.dk <= backward::kBlock || problem.dk > Record::kChannels || problem.tokens == 0) return false;
  const int64_t sms = forward_sm90::ctasAtOnce(problem);
  const Division division(problem);
  const int64_t items = itemsOf(problem) * division.parts;
  return items * 100 >= (items + sms - 1) / sms * sms * kLeastBusy && Workspace(problem, division).size <= kMostBytes;
}

size_t channelChainsSize(const LinearProblem& problem) {
  return formsChannelChains(problem) ? Workspace(problem, Division(problem)).size : 0;
}

size_t keptOperandsSize(const LinearProblem& problem) {
  const bool keeps = formsChannelChains(problem) && backward::formsChannelGroups(problem, {});
  return keeps ? static_cast<size_t>(backward::KeptChunks::bytes(problem)) : 0;
}

bool launchChannelChains(const Outputs& pass, float* saved, void* kept, const Launch& launch, int& error) {
  ChannelChainTask chains;
  if (!encodeChains(chains, pass)) return false;
  chains.saved = saved;
  const int ctas = ctasOf(pass.problem, launch);
  error = kept == nullptr ? cudaSuccess : runKept(chains, pass, kept, ctas, launch.stream);
  if (error == cudaSuccess) error = runMaps(chains, ctas, launch.stream);
  if (error == cudaSuccess) error = runChains(chains, ctas, launch.stream);
  if (launch.sequence != nullptr) launch.sequence->end();  // the launches are not recorded
  return true;
}

}  // namespace seqpar::attn::forward_sm90

namespace seqpar::attn {

int forwardMaps(const LinearProblem& problem) {
  using namespace forward_sm90;
  return whyNot(problem) == nullptr && formsChannelChains(problem) ? static_cast<int>(Division(problem).allPieces())
                                                                   : 0;
}

int launchForwardMaps(const Outputs& pass, const Launch& launch) {
  using namespace forward_sm90;
  ChannelChainTask chains;
  if (!encodeChains(chains, pass)) return cudaErrorNotSupported;
  chains.lastPart = pass.maps.states != nullptr;
  chains.maps = pass.maps;
  if (launch.sequence != nullptr) launch.sequence->end();
  return runMaps(chains, ctasOf(pass.problem, launch), launch.stream);
}

int launchForwardAfterMaps(const Outputs& pass, const Launch& launch) {
  using namespace forward_sm90;
  ChannelChainTask chains;
  if (!encodeChains(chains, pass)) return cudaErrorNotSupported;
  if (launch.sequence != nullptr) launch.sequence->end();
  return runChains(chains, ctasOf(pass.problem, launch), launch.stream);
}

}  // namespace seqpar::attn
