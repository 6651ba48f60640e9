// The launch of a forward by heads: all outputs of a head in one chain.
#include "kernels/attn/linear/chunks/channel_chains_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_sm90.h"
#include "kernels/attn/linear/chunks/head_chain_tail_sm90.h"
#include "kernels/attn/linear/chunks/wide_chain_sm90.h"
#include "kernels/attn/linear/forward_sm90.h"
#include "kernels/attn/linear/from_zero.h"
#include "kernels/attn/linear/kept_states.h"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/save_initial.h"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn::forward_sm90 {
namespace {

using backward::taskOf;

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) headChainsSm90(const __grid_constant__ HeadChainTask task) {
  Kernel::run(task);
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) headChainTailsSm90(const __grid_constant__ HeadChainTask task) {
  Kernel::run(task);
}

/// Whether keys have two blocks (wide_chain_sm90.h).
bool isWide(const LinearProblem& problem) {
  return problem.dk > backward::kBlock;
}
/// Whether keys have one panel.
bool isShort(const LinearProblem& problem) {
  return problem.dk <= kPanel;
}
/// 0: no form for the problem.
int panelsOf(const LinearProblem& problem) {
  if (isWide(problem)) return problem.dv % kPanel == 0 ? 1 : 0;
  return problem.dv % kPanel == 0 ? 1 : problem.dv > kPanel && problem.dv <= kChainColumns<2> ? 2 : 0;
}
int64_t itemsOf(const LinearProblem& problem) {
  const Task task = taskOf(problem, {}, {0, problem.heads}, {});
  return panelsOf(problem) == 1 ? chainsOf<1>(task) : chainsOf<2>(task);
}

/// Heads for a smaller percentage of CTAs are divided.
constexpr int64_t kMostDivided = 75;

/// HeadChainTask::firstChunks: the CTAs without a first part compute `each` second parts while a first part is
/// computed.
int firstChunksOf(const LinearProblem& problem, int ctas) {
  constexpr int64_t kLeastChunks = 32, kLeastDivided = 34;
  const int64_t chains = itemsOf(problem), chunks = (problem.tokens + kChunk - 1) / kChunk;
  if (panelsOf(problem) != 1 || chunks < kLeastChunks) return 0;
  if (chains * 100 < ctas * kLeastDivided || chains * 100 >= ctas * kMostDivided) return 0;
  const int64_t others = ctas - chains, each = (chains + others - 1) / others;
  return static_cast<int>((chunks * each + each) / (each + 1) + each - 1);
}
/// Bytes of the middle states, their images, and the totals, of divided heads.
size_t middleSize(const LinearProblem& problem) {
  constexpr int64_t kAligned = 4;  // floats, for the images that follow
  const int64_t count = int64_t{problem.batch} * problem.heads * problem.dk * problem.dv;
  return static_cast<size_t>((count + kAligned - 1) / kAligned * kAligned) * sizeof(float);
}
size_t imagesSize(const LinearProblem& problem) {
  const int64_t channels = isWide(problem) ? 4 * kPanel : isShort(problem) ? kPanel : 2 * kPanel;
  return static_cast<size_t>(itemsOf(problem) * channels * kPanel) * sizeof(uint16_t);
}
size_t totalsSize(const LinearProblem& problem) {
  constexpr int64_t kAligned = 4;  // floats, for the middle states that follow
  const int64_t count = problem.batch * problem.heads * ((problem.tokens + kChunk - 1) / kChunk);
  return static_cast<size_t>((count + kAligned - 1) / kAligned * kAligned) * sizeof(float);
}

int ctasOf(const LinearProblem& problem, const Launch& launch) {
  const int sms = forward_sm90::ctasAtOnce(problem);
  return launch.ctas > 0 ? std::min(launch.ctas, sms) : sms;
}
/// Returns false if no form supports the pass. `totals`: they are written even if heads are not divided.
bool encodeChains(HeadChainTask& chains, const Outputs& pass, bool totals, const Launch& launch) {
  const LinearProblem& problem = pass.problem;
  const bool whole = pass.segments.spans == nullptr && pass.heads.first == 0 && pass.heads.count == problem.heads;
  if (!whole || pass.storesMaps || !formsHeadChains(problem) || (totals && pass.workspace == nullptr)) return false;
  Task task = taskOf(problem, {}, {0, problem.heads}, {pass.out.data, pass.out.batch, pass.out.token, pass.out.head});
  if (!backward::sm90::encodeMaps<Bf16>(chains, task)) return false;
  chains.firstChunks = pass.workspace == nullptr ? 0 : firstChunksOf(problem, ctasOf(problem, launch));
  if (totals || chains.firstChunks > 0) chains.totals = pass.workspace;
  if (chains.firstChunks > 0) {
    chains.middle = pass.workspace + totalsSize(problem) / sizeof(float);
    chains.images = chains.middle + middleSize(problem) / sizeof(float);
  }
  return true;
}

/// Adds what second parts lack, and the contribution of chains.incoming.
cudaError_t launchTails(const HeadChainTask& chains, const LinearProblem& problem, const Launch& launch) {
  const auto run = [&]<class Kernel>() {
    return launchKernel(headChainTailsSm90<Kernel>, gridOf(Kernel::itemsOf(chains), 0), Kernel::kThreads,
                        sizeof(typename Kernel::Memory), launch.stream, true, chains);
  };
  if (isWide(problem)) return run.template operator()<HeadChainTailKernel<Bf16, 4>>();
  if (panelsOf(problem) > 1) return run.template operator()<HeadChainTailKernel<Bf16, 2, 2>>();
  return isShort(problem) ? run.template operator()<HeadChainTailKernel<Bf16, 1>>()
                          : run.template operator()<HeadChainTailKernel<Bf16, 2>>();
}

/// The task of the backward's launches for groups of heads, without tensors.
Task groupTaskOf(const LinearProblem& problem) {
  Task task = taskOf(problem, {1, problem.tokens}, {0, problem.heads}, {});
  task.together = headsOfChain(problem);
  return task;
}

/// What a call of launchChains() leaves for the backward; NULL: not written.
struct Kept {
  float* initial = nullptr;  ///< launchForwardAndSave()
  void* states = nullptr;    ///< launchForwardAndKeep()
};
/// forwardByHeads(). `fromZero`: launchForwardFromZero().
bool launchChains(const Outputs& pass, const Kept& kept, bool fromZero, const Launch& launch, int& error) {
  const LinearProblem& problem = pass.problem;
  if (problem.gate == Gate::Channel)
    return !fromZero && launchChannelChains(pass, kept.initial, kept.states, launch, error);
  HeadChainTask chains;
  if (!encodeChains(chains, pass, fromZero, launch)) return false;
  chains.initial = pass.initial;
  if (kept.states != nullptr) chains.to = backward::chunkStatesOf(groupTaskOf(problem), 1);
  chains.to.states = kept.states;
  chains.to.finalState = pass.finalState;
  chains.saved = kept.initial;
  const int ctas = ctasOf(problem, launch);
  const int64_t parts = chains.firstChunks > 0 ? 2 : 1;
  const auto run = [&]<class Kernel>() {
    return launchKernel(headChainsSm90<Kernel>, gridOf(parts * itemsOf(problem), ctas), Kernel::kThreads,
                        sizeof(typename Kernel::Memory), launch.stream, false, chains);
  };
  const auto runPanels = [&]<bool kGated, bool kKeeps>() {
    if (isWide(problem)) return run.template operator()<WideChainKernel<Bf16, kGated, kKeeps>>();
    if (panelsOf(problem) > 1) return run.template operator()<HeadChainKernel<Bf16, kGated, 2, 2, kKeeps>>();
    return isShort(problem) ? run.template operator()<HeadChainKernel<Bf16, kGated, 1, 1, kKeeps>>()
                            : run.template operator()<HeadChainKernel<Bf16, kGated, 1, 2, kKeeps>>();
  };
  const auto runGated = [&]<bool kGated>() {
    return kept.states != nullptr ? runPanels.template operator()<kGated, true>()
                                  : runPanels.template operator()<kGated, false>();
  };
  error =
      problem.inputGates.data != nullptr ? runGated.template operator()<true>() : runGated.template operator()<false>();
  if (error == cudaSuccess && parts > 1 && !fromZero) error = launchTails(chains, problem, launch);
  if (launch.sequence != nullptr) launch.sequence->end();  // the launch is not recorded
  return true;
}

}  // namespace

bool formsHeadChains(const LinearProblem& problem) {
  if (problem.gate == Gate::Channel) return formsChannelChains(problem);
  if (problem.type != seqparBfloat16 || !fits(problem)) return false;
  if (panelsOf(problem) == 0) return false;
  if (problem.dk > WideChainMemory<Bf16>::kKeyPanels * kPanel) return false;
  const int64_t items = itemsOf(problem), sms = forward_sm90::ctasAtOnce(problem);
  return items * 100 >= (items + sms - 1) / sms * sms * kMostDivided || firstChunksOf(problem, sms) > 0;
}

size_t headChainsSize(const LinearProblem& problem) {
  if (problem.gate == Gate::Channel) return channelChainsSize(problem);
  if (!formsHeadChains(problem)) return 0;
  const bool divided = firstChunksOf(problem, forward_sm90::ctasAtOnce(problem)) > 0;
  return totalsSize(problem) + (divided ? middleSize(problem) + imagesSize(problem) : 0);
}

bool forwardByHeads(const Outputs& pass, const Launch& launch, int& error) {
  return launchChains(pass, {}, false, launch, error);
}

}  // namespace seqpar::attn::forward_sm90

namespace seqpar::attn {

bool savesInitial(const LinearProblem& problem) {
  return whyNot(problem) == nullptr && forward_sm90::formsHeadChains(problem);
}

int launchForwardAndSave(const Outputs& pass, float* saved, const Launch& launch) {
  int error = cudaErrorNotSupported;
  forward_sm90::launchChains(pass, {saved}, false, launch, error);
  return error;
}

size_t keptStatesSize(const LinearProblem& problem) {
  using namespace forward_sm90;
  if (!savesInitial(problem)) return 0;
  if (problem.gate == Gate::Channel) return gradientsJoinHeads(problem) ? keptOperandsSize(problem) : 0;
  if (!gradientsJoinHeads(problem) || !formsGroups(problem)) return 0;
  if (firstChunksOf(problem, ctasOf(problem, {})) > 0) return 0;  // second parts lack the first ones' last states
  const Task task = groupTaskOf(problem);
  return static_cast<size_t>(backward::chunkStatesOf(task, 1).bytes(task));
}

int launchForwardAndKeep(const Outputs& pass, float* saved, void* states, const Launch& launch) {
  int error = cudaErrorNotSupported;
  forward_sm90::launchChains(pass, {saved, states}, false, launch, error);
  return error;
}

bool forwardFromZero(const LinearProblem& problem) {
  // With more heads, the added kernel takes as long as the wait.
  using namespace forward_sm90;
  return problem.gate != Gate::Channel && savesInitial(problem) && firstChunksOf(problem, ctasOf(problem, {})) > 0;
}
int launchForwardFromZero(const Outputs& pass, const Launch& launch) {
  int error = cudaErrorNotSupported;
  forward_sm90::launchChains(pass, {}, true, launch, error);
  return error;
}
int launchAddInitial(const Outputs& pass, const Launch& launch) {
  forward_sm90::HeadChainTask chains;
  if (!forward_sm90::encodeChains(chains, pass, true, launch)) return cudaErrorNotSupported;
  chains.incoming = pass.initial;
  if (launch.sequence != nullptr) launch.sequence->end();
  return forward_sm90::launchTails(chains, pass.problem, launch);
}

}  // namespace seqpar::attn
