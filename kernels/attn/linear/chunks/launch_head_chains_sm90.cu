// The launch of a forward by heads: all outputs of a head in one chain.
#include "kernels/attn/linear/chunks/head_chain_sm90.h"
#include "kernels/attn/linear/forward_sm90.h"
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

/// 0: no form for the problem.
int panelsOf(const LinearProblem& problem) {
  return problem.dv % kPanel == 0 ? 1 : problem.dv > kPanel && problem.dv <= kChainColumns<2> ? 2 : 0;
}
int64_t itemsOf(const LinearProblem& problem) {
  const Task task = taskOf(problem, {}, {0, problem.heads}, {});
  return panelsOf(problem) == 1 ? chainsOf<1>(task) : chainsOf<2>(task);
}

/// forwardByHeads(); `saved`: as for launchForwardAndSave(), NULL: not written.
bool launchChains(const Outputs& pass, float* saved, const Launch& launch, int& error) {
  const LinearProblem& problem = pass.problem;
  const bool whole = pass.segments.spans == nullptr && pass.heads.first == 0 && pass.heads.count == problem.heads;
  if (!whole || pass.storesMaps || !formsHeadChains(problem)) return false;
  Task task = taskOf(problem, {}, {0, problem.heads}, {pass.out.data, pass.out.batch, pass.out.token, pass.out.head});
  task.initial = pass.initial;
  HeadChainTask chains;
  if (!backward::sm90::encodeMaps<Bf16>(chains, task)) return false;
  chains.to.finalState = pass.finalState;
  chains.saved = saved;
  const int sms = forward_sm90::ctasAtOnce(problem), ctas = launch.ctas > 0 ? std::min(launch.ctas, sms) : sms;
  const auto run = [&]<bool kGated, int kPanels>() {
    using Kernel = HeadChainKernel<Bf16, kGated, kPanels>;
    return launchKernel(headChainsSm90<Kernel>, gridOf(chainsOf<kPanels>(task), ctas), Kernel::kThreads,
                        sizeof(typename Kernel::Memory), launch.stream, false, chains);
  };
  const auto runPanels = [&]<bool kGated>() {
    return panelsOf(problem) == 1 ? run.template operator()<kGated, 1>() : run.template operator()<kGated, 2>();
  };
  const bool gated = problem.inputGates.data != nullptr;
  error = gated ? runPanels.template operator()<true>() : runPanels.template operator()<false>();
  if (launch.sequence != nullptr) launch.sequence->end();  // the launch is not recorded
  return true;
}

}  // namespace

bool formsHeadChains(const LinearProblem& problem) {
  constexpr int64_t kLeastPercent = 75;  // of SMs. With 80 heads (61 %), segments of heads in parallel are faster
  if (problem.type != seqparBfloat16 || !fits(problem)) return false;
  if (problem.gate == Gate::Channel || panelsOf(problem) == 0) return false;
  if (problem.dk > backward::kBlock) return false;
  const int64_t items = itemsOf(problem), sms = forward_sm90::ctasAtOnce(problem);
  return items * 100 >= (items + sms - 1) / sms * sms * kLeastPercent;
}

bool forwardByHeads(const Outputs& pass, const Launch& launch, int& error) {
  return launchChains(pass, nullptr, launch, error);
}

}  // namespace seqpar::attn::forward_sm90

namespace seqpar::attn {

bool savesInitial(const LinearProblem& problem) {
  return whyNot(problem) == nullptr && forward_sm90::formsHeadChains(problem);
}

int launchForwardAndSave(const Outputs& pass, float* saved, const Launch& launch) {
  int error = cudaErrorNotSupported;
  forward_sm90::launchChains(pass, saved, launch, error);
  return error;
}

}  // namespace seqpar::attn
