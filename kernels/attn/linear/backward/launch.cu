// The launches of the backward pass.
#include <algorithm>

#include "kernels/attn/linear/backward/channel_groups.h"
#include "kernels/attn/linear/backward/exact.h"
#include "kernels/attn/linear/backward/launch_sums.cuh"
#include "kernels/attn/linear/backward/plan.h"
#include "kernels/attn/linear/fold.h"
#include "kernels/attn/linear/forward_sm90.h"
#include "kernels/attn/linear/gradients_first.h"
#include "kernels/attn/linear/gradients_with_maps.h"
#include "kernels/attn/linear/kept_states.h"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/pairs.h"
#include "kernels/attn/linear/sequence.h"

namespace seqpar::attn {
namespace backward {
namespace {

__global__ void __launch_bounds__(kExactThreads) exactMaps(const __grid_constant__ Task task) {
  ExactKernel::segmentMaps(task);
}
__global__ void __launch_bounds__(kExactThreads) exactGradients(const __grid_constant__ Task task) {
  ExactKernel::gradients(task);
}

/// Whether the sm_90 kernels support the problem: blocks of 16-bit elements, with channel decays wider than 64, on a
/// device with wgmma. `gradients`: those of pass 3, which also support two short heads.
bool hasSm90(const LinearProblem& problem, bool gradients) {
#ifdef SEQPAR_SM90
  const bool fits = mostDimensionOf(problem) == kBlock || (gradients && hasTwoHeads(problem));
  return problem.type != seqparFloat32 && fits && hasWgmma();
#else
  (void)problem, (void)gradients;
  return false;
#endif
}

template <class Work>
cudaError_t withSm90(const LinearProblem& problem, const Work& work) {
#ifdef SEQPAR_SM90
  const auto gate = [&]<class T>() {
    return problem.gate == Gate::Channel ? work.template operator()<InstanceSm90<T, true>>()
                                         : work.template operator()<InstanceSm90<T, false>>();
  };
  return problem.type == seqparBfloat16 ? gate.template operator()<Bf16>() : gate.template operator()<Fp16>();
#else
  (void)problem, (void)work;
  return cudaErrorNotSupported;
#endif
}

/// CTAs for `items`, at most as many as run concurrently.
int ctasFor(int64_t items, int each, const Launch& launch) {
  int64_t most = std::min<int64_t>(int64_t{sms()} * each, kMostCtas);
  if (launch.ctas > 0) most = std::min<int64_t>(most, launch.ctas);
  return static_cast<int>(std::clamp<int64_t>(items, 1, most));
}

template <class Work>
cudaError_t withInstance(const LinearProblem& problem, const Work& work) {
  const auto gate = [&]<class T, int kDimension>() {
    return problem.gate == Gate::Channel ? work.template operator()<Instance<T, kDimension, true>>()
                                         : work.template operator()<Instance<T, kDimension, false>>();
  };
  const auto size = [&]<class T>() {
    return dimensionOf(problem) == 64 ? gate.template operator()<T, 64>() : gate.template operator()<T, 128>();
  };
  return problem.type == seqparBfloat16 ? size.template operator()<Bf16>() : size.template operator()<Fp16>();
}

/// Computes the maps on both sides of segments from the per-segment maps.
int foldBoth(const Gradients& pass, const Launch& launch) {
  const int error = launchFold({pass.problem, pass.segments, pass.heads, pass.before}, launch);
  if (error != cudaSuccess) return error;
  constexpr bool kReverse = true;
  return launchFold({pass.problem, pass.segments, pass.heads, pass.after, kReverse}, launch);
}

/// The form of launchGradients().
struct Variant {
  bool gradientsFirst = false, withMaps = false;  ///< launchGradientsFirst(), launchGradientsWithMaps()
  const void* states = nullptr;                   ///< of launchGradientsOfKept(); else NULL
};

/// Computes the gradients of groups of heads.
cudaError_t runGroups(const Gradients& pass, Task& task, const Workspace& workspace, const Variant& variant,
                      const Launch& launch) {
#ifdef SEQPAR_SM90
  const LinearProblem& problem = pass.problem;
  auto* base = static_cast<char*>(pass.workspace);
  task.dq = wholeTarget(pass.dq, problem.type);
  task.dkOut = wholeTarget(pass.dk, problem.type);
  task.dvOut = wholeTarget(pass.dv, problem.type);
  const auto give = [&](Target& to, const Output& output, int type, int64_t offset) {
    if (output.data == nullptr) return;
    to = targetOf(output, type, base, offset, problem, problem.heads, task.keyBlocks, 1);
  };
  if (problem.gate != Gate::None) give(task.dGates, pass.dGates, pass.dGateType, workspace.gates);
  if (problem.inputGates.data != nullptr)
    give(task.dInputGates, pass.dInputGates, problem.inputGateType, workspace.inputGates);
  task.content = pass.content;
  ChunkStates chunks = chunkStatesOf(task, 1);
  chunks.firstDirection = variant.gradientsFirst ? 1 : 0;
  const bool kept = variant.states != nullptr;
  if (kept) chunks.directions = 1;  // the other one's states are there
  chunks.states = kept ? const_cast<void*>(variant.states) : base + workspace.states;
  chunks.gradients = base + workspace.stateGradients;
  if (launch.sequence != nullptr) launch.sequence->end();
  return launchGroups(task, chunks, pass.part, {launch.stream, launch.ctas > 0 ? launch.ctas : sms()});
#else
  (void)pass, (void)task, (void)workspace, (void)variant, (void)launch;
  return cudaErrorNotSupported;
#endif
}

/// Computes the gradients of chunks with channel decays, with `kept` unless decays are strong. Returns a word in device
/// memory that is not 0 in that case, or NULL if it launches nothing. `maps`: of launchGradientsForScan(); or NULL.
/// `kept`: of launchGradientsOfKept(); or NULL.
const uint32_t* runChannelGroups(const Gradients& pass, const SegmentStateGradients* maps, const void* kept,
                                 const Workspace& workspace, const Launch& launch, cudaError_t& error) {
#ifdef SEQPAR_SM90
  const LinearProblem& problem = pass.problem;
  if (workspace.records < 0 || pass.heads.first != 0 || pass.heads.count != problem.heads) return nullptr;
  auto* base = static_cast<char*>(pass.workspace);
  Task task = channelGroupsTask(problem, pass.dOut);
  task.initial = pass.initial;
  task.finalGradient = pass.finalGradient;
  task.dInitial = pass.dInitial;
  task.dq = wholeTarget(pass.dq, problem.type);
  task.dkOut = wholeTarget(pass.dk, problem.type);
  task.dvOut = wholeTarget(pass.dv, problem.type);
  task.dGates = wholeTarget(pass.dGates, pass.dGateType);
  ChannelGroupsMemory memory{base + workspace.records, chunkStatesOf(task, 1),
                             reinterpret_cast<uint32_t*>(base + workspace.anyStrong)};
  if (maps != nullptr) {
    memory.maps = maps->maps;
    memory.pieces = maps->segments;
  }
  // A scan that sends has waited for all earlier launches, and lets the next kernel start.
  const bool visible = pass.part == GradientsPart::AfterStates && launch.sequence != nullptr &&
                       launch.sequence->isComplete(base) && launch.sequence->isComplete(pass.finalGradient);
  if (visible) memory.recordsVisible = Visible::AtStart;
  memory.chunks.states = base + workspace.chunkStates;
  memory.chunks.gradients = base + workspace.chunkGradients;
  GradientsPart part = pass.part;
  if (kept != nullptr) {
    const KeptChunks chunks(const_cast<void*>(kept), problem);
    memory.records = chunks.records;
    memory.strong = chunks.strong;
    memory.chunks.states = chunks.states;
    memory.chunks.directions = 1;
    memory.leavesStrong = true;
    part = GradientsPart::AfterStates;  // its first kernel waits for all earlier work
  }
  if (launch.sequence != nullptr) launch.sequence->end();
  error = launchChannelGroups(task, memory, part, {launch.stream, launch.ctas > 0 ? launch.ctas : sms()});
  if (error == cudaSuccess) return memory.strong;
  if (error == cudaErrorNotSupported) error = cudaSuccess;
#else
  (void)pass, (void)maps, (void)kept, (void)workspace, (void)launch, (void)error;
#endif
  return nullptr;
}

}  // namespace
}  // namespace backward

bool gradientsReadChunkStates(const LinearProblem& problem, const Segments& segments) {
  return gradientsJoinHeads(problem) && formsGroups(problem, segments);
}

bool gradientsJoinHeads(const LinearProblem& problem) {
  constexpr int64_t kMostTokens = INT64_C(1) << 30;
  return problem.type == seqparBfloat16 && problem.tokens < kMostTokens && backward::hasSm90(problem, true);
}

int gradientsAtOnce(const LinearProblem& problem, bool alone) {
  using namespace backward;
  // The last of an odd number of heads takes the time of two.
  const int heads = problem.heads, pairs = (heads + kPair - 1) / kPair;
  if (hasSm90(problem, true) && hasTwoHeads(problem)) return sms() * heads / pairs;
  const bool joins = gradientsJoinHeads(problem);
  // Groups: one segment, because pass 1 would take longer than the states of a head's chunks one after the other. With
  // fewer heads and other ranks, which need pass 1 in any case, states of chunks are faster in segments.
  const int64_t panels = problem.dv > kWideColumns ? problem.dv / 64 : 1,
                keyBlocks = (problem.dk + kBlock - 1) / kBlock,
                items = problem.batch * problem.heads * panels * keyBlocks;
  const bool many = items * 3 >= 2 * int64_t{ctasAtOnce(problem)};
  if (joins && (alone || many) && formsGroups(problem)) return static_cast<int>(problem.batch * problem.heads);
  return joins && pairsHeads(problem) ? ctasAtOnce(problem) * kPair : ctasAtOnce(problem);
}

int backwardSharedBytes(const LinearProblem& problem) {
  using namespace backward;
  if (problem.type == seqparFloat32) return static_cast<int>(sizeof(ExactMemory));
  size_t bytes = 0;
  withInstance(problem, [&]<class I>() {
    bytes = I::sharedBytes();
    return cudaSuccess;
  });
  return static_cast<int>(bytes);
}

int idleSmsOfGradients(const LinearProblem& problem, const Segments& segments) {
  using namespace backward;
  if (!hasSm90(problem, true)) return 0;
  if (gradientsReadChunkStates(problem, segments)) return 0;
  if (gradientsJoinHeads(problem) && formsChannelGroups(problem, segments)) return 0;
  Task task = taskOf(problem, segments, {0, problem.heads}, {});
  if ((gradientsJoinHeads(problem) && pairsHeads(problem)) || hasTwoHeads(problem)) task.together = kPair;
  const int together = problem.gate == Gate::Channel ? 1 : task.keyBlocks;  // as itemsTogether()
  return static_cast<int>(std::max<int64_t>(sms() - itemsOf(task) / together, 0));
}

int launchSegmentStateGradients(const SegmentStateGradients& pass, const Launch& launch) {
  using namespace backward;
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const Task task = mapsTaskOf(pass);
  if (pass.problem.batch == 0 || pass.heads.count == 0) return cudaSuccess;
  // Only the map of the rank needs the first segment's map.
  const bool rank = pass.stateGradient != nullptr || pass.logDecay != nullptr;
  const int segments = pass.segments.count - (rank || pass.allSegments ? 0 : 1);
  if (segments == 0) return cudaSuccess;
  const bool full = pass.problem.type == seqparFloat32;
  const bool sm90 = hasSm90(pass.problem, false);
  const int ctas = ctasFor(itemsOf(task), full || sm90 ? 2 : ctasOf(dimensionOf(pass.problem)), launch);
  int error = cudaSuccess;
  if (forward_sm90::fits(pass.problem) && forward_sm90::segmentStateGradients(pass, segments, launch, error)) {
    if (error != cudaSuccess) return error;
  } else if (startsEarly(ordinaryRecord(pass.maps), launch); sm90) {
    error = withSm90(pass.problem, [&]<class I>() { return I::segmentMaps(task, ctas, stream); });
  } else if (full) {
    error = launchTask(&exactMaps, task, ctas, kExactThreads, sizeof(ExactMemory), stream);
  } else {
    error = withInstance(pass.problem, [&]<class I>() { return I::segmentMaps(task, ctas, stream); });
  }
  if (error != cudaSuccess || (pass.content != Maps::Prefix && !rank)) return error;
  constexpr bool kReverse = true;
  return launchFold(
      {pass.problem, pass.segments, pass.heads, pass.maps, kReverse, pass.content, pass.stateGradient, pass.logDecay},
      launch);
}

namespace {

/// Computes the maps of both passes, unless *needed is 0.
int computeMaps(const Gradients& pass, const uint32_t* needed, const Launch& launch) {
#ifdef SEQPAR_SM90
  const int segments = pass.segments.count - 1;
  int error = cudaSuccess;
  if (segments == 0) return error;
  auto* const word = reinterpret_cast<int*>(const_cast<uint32_t*>(needed));
  SegmentStates states{pass.problem, pass.segments, pass.heads, pass.before};
  states.content = Maps::PerSegment;
  if (!forward_sm90::segmentStates(states, segments, launch, error, word)) error = launchSegmentStates(states, launch);
  if (error != cudaSuccess) return error;
  SegmentStateGradients gradients{pass.problem, pass.segments, pass.heads, pass.dOut, pass.after};
  gradients.content = Maps::PerSegment;
  return forward_sm90::segmentStateGradients(gradients, segments, launch, error, word)
             ? error
             : launchSegmentStateGradients(gradients, launch);
#else
  (void)pass, (void)needed, (void)launch;
  return cudaErrorNotSupported;
#endif
}

int runGradients(const Gradients& pass, const backward::Variant& variant, const Launch& launch) {
  using namespace backward;
  const LinearProblem& problem = pass.problem;
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  Task task = taskOf(problem, pass.segments, pass.heads, pass.dOut);
  if (problem.batch == 0 || pass.heads.count == 0) return cudaSuccess;
  if (pass.heads.first % task.group != 0 || pass.heads.count % task.group != 0) return cudaErrorInvalidValue;
  if (problem.gate != Gate::Channel && pass.dGateType != seqparFloat32) return cudaErrorInvalidValue;
  if (problem.inputGates.data != nullptr && !fusesInputGate(problem)) return cudaErrorNotSupported;
  const bool joins = gradientsJoinHeads(problem), paired = joins && pairsHeads(problem),
             groups = joins && formsGroups(problem, pass.segments);
  if (groups || paired) task.together = groups ? headsOfChain(problem) : kPair;
  const bool kept = variant.states != nullptr;
  if (kept && !groups && problem.gate != Gate::Channel) return cudaErrorNotSupported;
  const Workspace workspace = workspaceOf(problem, pass.segments, joins, kept);
  auto* base = static_cast<char*>(pass.workspace);
  task.before = pass.before;
  task.after = pass.after;
  task.initial = pass.initial;
  task.finalGradient = pass.finalGradient;
  task.dInitial = pass.dInitial;
  if (groups) {
    const cudaError_t error = runGroups(pass, task, workspace, variant, launch);
    return error != cudaSuccess || pass.part == GradientsPart::States ? error : addUpAll(pass, task, workspace, launch);
  }
  cudaError_t error = cudaSuccess;
  task.onlyIf = runChannelGroups(pass, nullptr, variant.states, workspace, launch, error);
  const bool done = task.onlyIf != nullptr && !kept;
  if (error != cudaSuccess || done || pass.part == GradientsPart::States) return error;
  if (variant.withMaps) error = static_cast<cudaError_t>(computeMaps(pass, task.onlyIf, launch));
  if (error != cudaSuccess) return error;
  const int heads = problem.heads, items = heads / task.together;
  task.dq = targetOf(pass.dq, problem.type, base, workspace.dq, problem, items, task.valueBlocks, problem.dk);
  task.dkOut = targetOf(pass.dk, problem.type, base, workspace.dk, problem, items, task.valueBlocks, problem.dk);
  addScales(task.dq, base, workspace.dqScales);
  addScales(task.dkOut, base, workspace.dkScales);
  bool sm90 = hasSm90(problem, true);
  if (sm90 && withSm90(problem, [&]<class I>() { return I::supports(task); }) != cudaSuccess) {
    if (paired || problem.inputGates.data != nullptr) return cudaErrorNotSupported;
    sm90 = false;
  }
  if (sm90 && problem.gate != Gate::Channel && task.keyBlocks > 1) {
    task.valueSums = reinterpret_cast<float*>(base + workspace.dv);
  }
  if (sm90 && hasTwoHeads(problem)) task.together = kPair;  // each head has its own terms
  task.dvOut = targetOf(pass.dv, problem.type, base, task.valueSums != nullptr ? -1 : workspace.dv, problem, heads,
                        task.keyBlocks, problem.dv);
  if (pass.dGates.data != nullptr && problem.gate != Gate::None) {
    const int blocks = blocksOfGates(task);
    const bool added = problem.gate == Gate::Token && blocks == 1;  // by the kernel
    task.dGates = targetOf(pass.dGates, pass.dGateType, base, added ? -1 : workspace.gates, problem, heads, blocks,
                           problem.gate == Gate::Channel ? problem.dk : 1);
  }
  if (problem.inputGates.data != nullptr && pass.dInputGates.data != nullptr) {
    const bool added = task.valueSums != nullptr && problem.inputGateType == seqparFloat32;  // by the kernel
    task.dInputGates = targetOf(pass.dInputGates, problem.inputGateType, base, added ? -1 : workspace.inputGates,
                                problem, heads, task.keyBlocks, 1);
  }
  if (sm90) {
    task.content = pass.content;
    if (problem.type == seqparBfloat16 && task.together == 1) {  // pairs have scales; two short heads, fp32 terms
      addScales(task.dq, base, workspace.dq, problem);
      addScales(task.dkOut, base, workspace.dk, problem);
      if (problem.gate == Gate::Channel) addScales(task.dvOut, base, workspace.dv, problem);
    }
  } else if (pass.content == Maps::PerSegment) {
    const int folded = foldBoth(pass, launch);
    if (folded != cudaSuccess) return folded;
  }
  if (problem.type == seqparFloat32) {
    error = launchTask(&exactGradients, task, ctasFor(itemsOf(task), 2, launch), kExactThreads, sizeof(ExactMemory),
                       stream);
  } else {
    task.states = base + workspace.states;
    const int ctas = ctasFor(itemsOf(task) / itemsTogether(task), sm90 ? 1 : ctasOf(dimensionOf(problem)), launch);
    error = cudaSuccess;
    if (sm90) {
      task.strong = reinterpret_cast<uint32_t*>(base + workspace.strong);
      task.decays = base + workspace.decays;
      task.beforeVisible = beforeVisible(pass, launch.sequence);
      const bool overlaps = startsEarly(recordOf(pass, task.beforeVisible), launch);
      error = withSm90(problem, [&]<class I>() { return I::gradients(task, ctas, overlaps, stream); });
    }
    if (!sm90) {
      error = withInstance(problem, [&]<class I>() { return I::gradients(task, ctas, stream); });
    }
  }
  if (launch.sequence != nullptr) launch.sequence->end();  // further launches are not recorded
  return error != cudaSuccess ? error : addUpAll(pass, task, workspace, launch);
}

}  // namespace

int launchGradients(const Gradients& pass, const Launch& launch) {
  return runGradients(pass, {}, launch);
}

int launchGradientsFirst(const Gradients& pass, const Launch& launch) {
  return runGradients(pass, {.gradientsFirst = true}, launch);
}

int launchGradientsOfKept(const Gradients& pass, const void* states, bool gradientsFirst, const Launch& launch) {
  return runGradients(pass, {gradientsFirst, pass.problem.gate == Gate::Channel, states}, launch);
}

bool gradientsSeldomReadMaps(const LinearProblem& problem, const Segments& segments) {
  return gradientsJoinHeads(problem) && backward::formsChannelGroups(problem, segments) &&
         forward_sm90::fits(problem) && fastestMaps(problem, segments) == Maps::PerSegment;
}

int launchGradientsWithMaps(const Gradients& pass, const Launch& launch) {
  return runGradients(pass, {.withMaps = true}, launch);
}

int launchGradientsForScan(const Gradients& pass, const SegmentStateGradients& maps, const Launch& launch) {
  using namespace backward;
  const Workspace workspace = workspaceOf(pass.problem, pass.segments, gradientsJoinHeads(pass.problem));
  cudaError_t error = cudaSuccess;
  const bool done = runChannelGroups(pass, &maps, nullptr, workspace, launch, error) != nullptr;
  if (error != cudaSuccess || done) return error;
  return launchSegmentStateGradients(maps, launch);
}

}  // namespace seqpar::attn
